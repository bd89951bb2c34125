"""What a view of a check is asked to show, and the words that all of them use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hiwater._os.sizes import format_size
from hiwater.analysis.baseline import FIGURES, Compared
from hiwater.analysis.check import Cause, Checked
from hiwater.capture import Run
from hiwater.report.diff_request import resident_exactness
from hiwater.report.formatting import place_text, printable, signed_percent, signed_size, size

VERDICTS = {
    "worse": "worse",
    "better": "better",
    "same": "same",
    "unknown": "not known",
    "new": "not in the baseline",
    "missing": "not measured",
}
_NAME_WIDTH = 80


@dataclass(frozen=True)
class CheckReport:
    """The programs that were checked, those with failures first. `baseline` is the file they are compared with, None if
    there are limits alone.

    `before` and `here` say which Python, platform and hiwater the figures of either side are from; `not_measured` are
    entries of the baseline alone.
    """

    checked: tuple[Checked, ...]
    baseline: str | None
    before: dict[str, str]
    here: dict[str, str]
    not_measured: tuple[str, ...] = ()
    updated: bool = False

    @cached_property
    def ordered(self) -> list[Checked]:
        """Those with failures first."""
        return sorted(self.checked, key=lambda one: not one.failures)

    @property
    def is_kept(self) -> bool:
        return not any(one.failures for one in self.checked)

    @property
    def lead(self) -> str:
        """How it went, in one sentence: with the line that is behind the first failure."""
        bad, count = [one for one in self.checked if one.failures], len(self.checked)
        if bad:
            many = f"{len(bad)} of {count:,} programs {'uses' if len(bad) == 1 else 'use'}"
            said = f"{many if count > 1 else name_of(bad[0]) + ' uses'} more memory than is allowed"
            cause = next(((one, one.causes) for one in bad if one.causes), None)
            if cause is None:
                return said
            whose = f"{name_of(cause[0])} " if count > 1 else ""
            return f"{said}; {whose}{causes_lead(cause[1])}: {cause_text(cause[1][0])}"
        verdicts = [row.verdict for one in self.checked for row in (*one.rows, *one.limits)]
        figures, unknown = sum(one in ("same", "better") for one in verdicts), verdicts.count("unknown")
        if not figures and not unknown:
            return f"{_counted(count, 'program')}, none of them in the baseline: nothing was compared"
        does = "keeps" if count == 1 else "keep"
        if not figures:
            it = "it" if count == 1 else "they"
            return f"{_counted(count, 'program')}: lower bounds do not tell whether {it} {does} to what is allowed"
        rest = f"; lower bounds do not tell it of {unknown:,} more" if unknown else ""
        return f"{_counted(count, 'program')} {does} to what is allowed ({_counted(figures, 'figure')}{rest})"

    @property
    def notes(self) -> list[str]:
        """What limits the comparison, and what to do about it."""
        notes = [
            f"the baseline was measured with {_words(name, self.before[name])}, and this with"
            f" {_words(name, self.here[name])}: part of a difference may come from that"
            for name in ("python", "platform", "hiwater")
            if not self.is_kept and self.before.get(name, self.here[name]) != self.here[name]
        ]
        for one in self.checked:
            rows = (*one.rows, *one.limits)
            notes += [
                f"{one.name}: memory {FIGURES[row.figure]} is above the allowed value, but by less than its error "
                f"({figure_text(row.figure, row.error)}): no failure"
                for row in rows
                if row.is_within_error
            ]
            if any(row.verdict == "better" for row in rows):
                notes.append(f"{one.name} uses less than its baseline: --update writes the lower figures")
            if one.now.run is not None:
                notes += _shortcomings(one)
                if any(row.at_least for row in rows):
                    notes += _lower_bounds(one.name, one.now.run)
        notes += [f"{name!r} is in the baseline and was not measured" for name in self.not_measured]
        new = [repr(one.name) for one in self.checked if one.rows and all(row.verdict == "new" for row in one.rows)]
        if new and self.baseline is not None and not self.updated:
            notes.append(f"{', '.join(new)}: not in the baseline; --update adds it")
        if self.updated:
            notes.append(f"the baseline {self.baseline} was updated")
        return [printable(note, 500) for note in notes]


def _shortcomings(one: Checked) -> list[str]:
    assert one.now.run is not None
    found = [f"{one.name}: {problem}" for problem in one.now.run.unreadable]
    for capture in one.now.run.captures:
        found += [f"{one.name}: {what}" for what in capture.shortcomings]
        if capture.lost_events:
            found.append(f"{one.name}: {capture.lost_events:,} events were lost: its allocated figures are not exact")
    return found


def _lower_bounds(name: str, run: Run) -> Iterator[str]:
    for capture in run.captures:
        if capture.resident.is_lower_bound:
            yield f"{name}: the resident peak of process {capture.process.pid} is {resident_exactness(capture)}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _words(name: str, value: str) -> str:
    return value if name == "platform" else f"{'Python' if name == 'python' else name} {value}"


def figure_text(figure: str, count: int | None) -> str:
    """A figure with its unit; "–" if it is not known."""
    if count is None:
        return "–"
    return f"{count:,}" if figure == "allocations" else size(count)


def now_text(row: Compared) -> str:
    """What it is now; ≥ stands before a lower bound."""
    return f"{'≥ ' if row.at_least else ''}{figure_text(row.figure, row.now)}"


def change_text(row: Compared) -> str:
    """What changed, in its unit and in percent; "" if one side is not known."""
    if row.before is None or row.now is None:
        return ""
    text = signed_size(row.change)
    if row.figure == "allocations":
        text = f"{row.change:+,}".replace("-", "−") if row.change else "±0"
    percent = signed_percent(100 * row.change / row.before) if row.before else ""
    return f"{text} ({percent})" if percent else text


def failure_text(row: Compared) -> str:
    """What is wrong with one figure, in one sentence without its program."""
    now, allowed = now_text(row), figure_text(row.figure, row.allowed)
    what = FIGURES[row.figure] if row.figure == "allocations" else f"memory {FIGURES[row.figure]}"
    if row.before is None:
        return f"{what}: {now}, above the limit of {allowed}"
    return f"{what}: {now}, {change_text(row)}; at most {allowed} is allowed"


def cause_text(cause: Cause) -> str:
    """Which line is behind it, in one phrase."""
    where = place_text(cause.frame, here(cause), 120)
    if cause.frame.line:
        where += f" in {printable(cause.frame.function, 60)}"
    if cause.change is None:
        return f"{format_size(cause.bytes, 1)} at {where}"
    return f"{signed_size(cause.change)} at {where}"


def causes_lead(causes: tuple[Cause, ...]) -> str:
    """What the lines are: those that grew, or those that hold most."""
    verb = "held most" if causes[0].change is None else "grew most"
    return f"{verb} at the {causes[0].moment}"


def here(cause: Cause) -> str:
    """The folder below which paths are relative: that of this process if the file is in it, else that in which the
    program was started."""
    folder = os.getcwd()
    return folder if cause.frame.file.startswith(folder + "/") else cause.folder


def name_of(one: Checked) -> str:
    """The name of a program, printable."""
    return printable(one.name, _NAME_WIDTH)
