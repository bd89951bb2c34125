"""What `hiwater check` finds: the figures of programs beside a baseline and beside limits, and the lines behind what
grew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from hiwater.analysis.baseline import FIGURES, Compared, Entry, Tolerance, Verdict, compare_figure, this_environment
from hiwater.analysis.diff import compare_as_recorded
from hiwater.analysis.matching import process_pairs
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture import Capture, Frame, Run
from hiwater.capture.program import name_of
from hiwater.errors import BadBaseline, BadRequest

REPORT_SCHEMA = "hiwater.report/3"
_ERRORS_APART = 2  # an estimate is known within so many standard errors
_CAUSES = 3
_OF_FIRST = 10  # a line with less than a tenth of what the first one has is no cause


@dataclass(frozen=True, slots=True)
class Cause:
    """A line of the user's own code behind a figure, in the process that started in `folder`. It held `bytes` at
    `moment`, `change` more than in the baseline; None if the baseline has no lines."""

    frame: Frame
    bytes: int
    change: int | None
    moment: str
    folder: str


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The figures of one program. `run` has its captures; None if only figures are known, as in a baseline."""

    entry: Entry
    run: Run | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """What was found of one program. `rows` has each figure beside the baseline, `limits` each beside a limit: there
    `before` is None."""

    name: str
    now: Measured
    rows: tuple[Compared, ...]
    limits: tuple[Compared, ...]
    causes: tuple[Cause, ...]

    @property
    def failures(self) -> list[Compared]:
        """What grew by more than is tolerated, and what is above its limit."""
        return [row for row in (*self.rows, *self.limits) if row.verdict == "worse"]


def program_name(argv: Sequence[str]) -> str:
    """What an entry is called unless somebody names it: the script without its folder and suffix, the module, or
    "-c"."""
    words = name_of(tuple(argv))
    name = words[0] if words else ""
    return PurePath(name).stem if name.endswith((".py", ".pyw")) else PurePath(name).name or "program"


def measured(run: Run) -> Measured:
    """The figures of a program and of the processes that it started.

    Of several processes, allocations and allocated bytes are sums. The peaks are those of the highest sum at one
    instant, and what is kept is what the first process kept.
    """
    main = run.captures[0]
    figures: dict[str, int] = {}
    errors: dict[str, int] = {}
    _put_resident(run, figures, errors)
    if not main.is_timeline:
        _put_allocated(run, figures, errors)
    devices = [one.peak_allocated_bytes for capture in run.captures for one in capture.devices]
    known = [count for count in devices if count is not None]
    if known:
        figures["device_bytes"] = sum(known)
    ordered = {name: figures[name] for name in FIGURES if name in figures}
    at_least = frozenset({"resident_bytes"} if any(one.resident.is_lower_bound for one in run.captures) else ())
    return Measured(Entry(ordered, None, {name: error for name, error in errors.items() if error}, at_least), run)


def _put_resident(run: Run, figures: dict[str, int], errors: dict[str, int]) -> None:
    main = run.captures[0].resident
    figures["resident_bytes"], errors["resident_bytes"] = main.program_peak_bytes, main.error_bytes
    if run.is_of_several:
        instants = [machine.resident for machine in run.machines if machine.resident]
        figures["resident_bytes"] = sum(instant.bytes for instant in instants)
        errors["resident_bytes"] = sum(instant.error_bytes for instant in instants)


def _put_allocated(run: Run, figures: dict[str, int], errors: dict[str, int]) -> None:
    main = run.captures[0]
    peak, end = main.peak, main.end
    figures["peak_bytes"], errors["peak_bytes"] = peak.allocated_bytes, _ERRORS_APART * peak.standard_error_bytes
    if run.is_of_several:
        instants = [machine.allocated for machine in run.machines if machine.allocated]
        figures["peak_bytes"] = sum(instant.bytes for instant in instants)
        errors["peak_bytes"] = sum(instant.error_bytes for instant in instants)
    totals = [capture.totals for capture in run.captures]
    figures["allocated_bytes"] = sum(one.allocated_bytes for one in totals) + sum(one.total_bytes for one in run.short)
    figures["allocations"] = sum(one.allocations for one in totals) + sum(one.total_blocks for one in run.short)
    figures["kept_bytes"], errors["kept_bytes"] = end.allocated_bytes, _ERRORS_APART * end.standard_error_bytes


def environment_of(run: Run) -> dict[str, str]:
    """What the figures of a program depend on besides the program, as far as its capture says so."""
    process = run.captures[0].process
    recorded = {"python": process.python, "hiwater": process.hiwater}
    return {**this_environment(), **{name: words.split()[0] for name, words in recorded.items() if words.split()}}


def from_report(document: Any, name: str) -> dict[str, Measured]:
    """The figures in a report that `hiwater report --format json` wrote to the file `name`. Raises BadBaseline."""
    found = {}
    for report in document if isinstance(document, list) else [document]:
        if isinstance(report, dict) and report.get("children"):
            raise BadBaseline(
                f"{name!r} is a report of several processes", "give their capture: it has the sum at one instant"
            )
        try:
            if report["schema"] != REPORT_SCHEMA:
                raise BadBaseline(
                    f"{name!r} is a report of another version ({report['schema']})", f"write {REPORT_SCHEMA}"
                )
            key, entry = program_name(report["process"]["argv"]), _of_report(report)
        except (KeyError, TypeError) as error:
            raise BadBaseline(
                f"{name!r} is not a report of hiwater ({error!r})", "give a capture or a report"
            ) from error
        if key in found:
            raise BadBaseline(f"{name!r} has two programs called {key!r}", "give a report of each")
        found[key] = Measured(entry)
    return found


def _of_report(report: dict[str, Any]) -> Entry:
    resident, peak = report["resident"], report["peak"]
    figures = {"resident_bytes": resident["program_peak_bytes"]}
    errors = {"resident_bytes": resident["error_bytes"]}
    if report["process"]["mode"] != "timeline":
        totals = report["totals"]
        figures |= {"peak_bytes": peak["allocated_bytes"], "kept_bytes": report["end"]["allocated_bytes"]}
        figures |= {"allocated_bytes": totals["allocated_bytes"], "allocations": totals["allocations"]}
        errors |= dict.fromkeys(("peak_bytes", "kept_bytes"), _ERRORS_APART * (peak["standard_error_bytes"] or 0))
    devices = [one["peak_allocated_bytes"] for one in report["devices"] if one["peak_allocated_bytes"] is not None]
    if devices:
        figures["device_bytes"] = sum(devices)
    at_least = frozenset(() if resident["exact"] else {"resident_bytes"})
    return Entry(figures, None, {name: error for name, error in errors.items() if error}, at_least)


def check(
    before: Mapping[str, Measured] | None,
    now: Mapping[str, Measured],
    *,
    tolerance: Tolerance | None = None,
    limits: Mapping[str, int],
    figures: Sequence[str] = (),
    may_miss: bool = False,
) -> list[Checked]:
    """Hold every program of `now` beside `before` (None: nothing) and beside `limits`, which are by figure. Only
    `figures` are compared, if there are any.

    One program before and one now are compared whatever their names are. Raises BadRequest for a limit of a figure that
    nobody measured, and if there is something before and none of it is known now, unless that may be missing: a check
    that compares nothing must not pass.
    """
    if before is None:
        return [_checked(name, None, now[name], tolerance, limits, figures) for name in sorted(now)]
    if len(before) == len(now) == 1:
        before = dict(zip(now, before.values(), strict=True))
    if (
        before
        and not may_miss
        and not any(set(before[name].entry.figures) & set(now[name].entry.figures) for name in before.keys() & now)
    ):
        raise BadRequest(
            f"nothing can be compared: the baseline has {_names(before)}, and this is {_names(now)}",
            "give the captures as NAME=CAPTURE, or add them with --update",
        )
    return [
        _checked(name, before.get(name, Measured(Entry({}))), now[name], tolerance, limits, figures)
        for name in sorted(now)
    ]


def _names(programs: Mapping[str, object]) -> str:
    shown = [repr(name) for name in sorted(programs)]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _checked(
    name: str,
    before: Measured | None,
    now: Measured,
    tolerance: Tolerance | None,
    limits: Mapping[str, int],
    figures: Sequence[str],
) -> Checked:
    rows = tuple(_compared(name, before.entry, now.entry, tolerance, figures)) if before is not None else ()
    found = Checked(name, now, rows, tuple(_held_against(name, now.entry, limits)), ())
    if not found.failures or now.run is None:
        return found
    causes = _causes(
        before.run if before is not None else None,
        now.run,
        "end" if found.failures[0].figure == "kept_bytes" else "peak",
    )
    return Checked(name, now, found.rows, found.limits, tuple(causes))


def _compared(
    name: str, before: Entry, now: Entry, tolerance: Tolerance | None, figures: Sequence[str]
) -> Iterator[Compared]:
    """Each figure beside its baseline, which says which of its figures count."""
    known = before.figures or now.figures
    for figure in FIGURES:
        if figure in known and (not figures or figure in figures):
            yield compare_figure(name, figure, before, now, tolerance)


def _held_against(name: str, entry: Entry, limits: Mapping[str, int]) -> Iterator[Compared]:
    """Each limit. A figure above it by no more than its error keeps it; a lower bound below it does not tell."""
    for figure, limit in limits.items():
        count = entry.figures.get(figure)
        if count is None:
            raise BadRequest(
                f"there is a limit for memory {FIGURES[figure]}, and {name!r} has no such figure", "leave the limit out"
            )
        error, at_least = entry.errors.get(figure, 0), figure in entry.at_least
        verdict: Verdict = "worse" if count - error > limit else "unknown" if at_least else "same"
        yield Compared(name, figure, None, count, limit, error, verdict, at_least)


def _causes(before: Run | None, now: Run, moment: str) -> Iterator[Cause]:
    """The lines that grew most, in the process that grew most. Without captures to compare with: those that held
    most, in the largest process."""
    pairs = process_pairs(before.captures, now.captures) if before is not None else []
    comparisons = [compare_as_recorded(*pair, at=moment) for pair in pairs if not any(one.is_timeline for one in pair)]
    if comparisons:
        worst = max(comparisons, key=lambda one: one.allocated.change or 0)
        for change in worst.lines.grew[:_CAUSES]:
            if change.frames and change.bytes * _OF_FIRST >= worst.lines.grew[0].bytes:
                yield Cause(change.frames[-1], change.after_bytes, change.bytes, moment, _folder(worst.after))
        return
    captures = [one for one in now.captures if not one.is_timeline]
    if captures:
        largest = max(captures, key=lambda one: one.snapshot(moment).allocated_bytes)
        ranking = rank_lines(largest.tables, largest.snapshot(moment).holdings())
        rows = ranking.lines[:_CAUSES] or ranking.rows[:1]
        held = [row.bytes + row.untouched_bytes for row in rows]
        for row, count in zip(rows, held, strict=True):
            if count * _OF_FIRST >= held[0]:
                yield Cause(row.frame, count, None, moment, _folder(largest))


def _folder(capture: Capture) -> str:
    return capture.facts.get("cwd", "")
