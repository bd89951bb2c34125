"""What a view of a comparison is asked to show, and the words that all of them use."""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.diff import MatchedComparison, Verdict
from hiwater.capture import Capture
from hiwater.capture.comparison import Changes, ComparedFigure
from hiwater.report.formatting import signed_percent, signed_size, size
from hiwater.report.request import Report


@dataclass(frozen=True)
class DiffReport:
    """A comparison as asked for. `by` is None where nobody asked for one grouping alone: then lines and stacks are shown."""

    comparison: MatchedComparison
    by: str | None = None
    top: int = 10
    verdict: Verdict | None = None
    processes: tuple[
        MatchedComparison, ...
    ] = ()  # of merged captures, all that were compared; `comparison` is what grew most
    unmatched: tuple[int, int] = (0, 0)  # processes of either side that have no partner on the other

    @property
    def notes(self) -> list[str]:
        """Everything that limits the comparison."""
        found = notes(self.comparison)
        if len(self.processes) > 1:
            found.insert(
                0, f"of {len(self.processes)} processes, the one that grew most is shown: {self.after.process}"
            )
        gone, new = self.unmatched
        if gone or new:
            found.append(f"processes without a partner: {gone} of the first capture, {new} of the second")
        return found

    @property
    def before(self) -> Report:
        """The earlier capture as a report has it."""
        return self.sides(self.comparison)[0]

    @property
    def after(self) -> Report:
        """The later capture as a report has it."""
        return self.sides(self.comparison)[1]

    def sides(self, told: MatchedComparison) -> tuple[Report, Report]:
        """Both captures of one of the comparisons as reports have them."""
        by = Grouping(self.by) if self.by else None
        before, after = (
            Report(capture, snapshot, told.kind, by, is_one_of_several=bool(self.processes))
            for capture, snapshot in ((told.before, told.before_snapshot), (told.after, told.after_snapshot))
        )
        return before, after

    @property
    def sections(self) -> list[tuple[str, Changes]]:
        """The tables of the report: a title and the changes below it, the largest first; empty ones are left out."""
        told = self.comparison
        tables = [(self.by, told.rows)] if self.by else [("line", told.lines), ("stack", told.rows)]
        remarks = {"line": "" if self.by else "your code and everything it called", "stack": "innermost frame first"}
        found = []
        for by, changes in tables:
            assert by is not None
            remark = f" ({remarks[by]})" if remarks.get(by) else ""
            for word, shown in (("grew", changes.grew), ("shrank", changes.shrank)):
                if shown:
                    found.append((f"{by.capitalize()}s that {word}{remark}", shown))
        return found


def exactness(report: Report) -> str:
    """How far the figures of one side can be trusted."""
    return report.exactness(report.capture.peak)


def resident_exactness(capture: Capture) -> str:
    """How far the resident peak of one side can be trusted."""
    resident = capture.resident
    if capture.device is not None:
        return "none of RAM"
    if not resident.exact:
        return "at least: highest sample"
    return "exact" if not resident.error_bytes else f"within {size(resident.error_bytes)}"


def both(before: str, after: str) -> str:
    """One word for both sides where they agree."""
    return before if before == after else f"{before}; then {after}"


def snapshot_words(told: MatchedComparison) -> str:
    """The moments that are compared."""
    seconds = [f"{snapshot.at_ns / 1e9:.2f} s" for snapshot in (told.before_snapshot, told.after_snapshot)]
    name = {"slice": "the highest moment asked for"}.get(told.after_snapshot.name, f"the {told.after_snapshot.name}")
    kind = "" if told.kind == "all" else f"{told.kind} memory at "
    return f"{kind}{name}, at {seconds[0]} and {seconds[1]}"


def figure_words(figure: ComparedFigure) -> str:
    """A change in bytes, in words."""
    if figure.change is None:
        return "not known in both"
    error = f", within error (standard error ≤ {size(figure.standard_error_bytes)})" if figure.is_within_error else ""
    percent = signed_percent(figure.percent)
    return f"{signed_size(figure.change)}{f' ({percent})' if percent else ''}{error}"


def verdict_words(verdict: Verdict) -> str:
    """What became of a limit, in one sentence."""
    limit = f"{size(verdict.limit.bytes)}" if verdict.limit.bytes is not None else f"{verdict.limit.percent:g} %"
    figure = verdict.figure
    if figure.change is None:
        return f"{verdict.quantity} is not known in both captures"
    if figure.change <= 0:
        return f"{verdict.quantity} did not grow ({figure_words(figure)})"
    kept = f"no more than {limit}" if verdict.kept else f"more than {limit}"
    if verdict.kept and figure.is_within_error:
        kept = f"no proof of more than {limit}"
    return f"{verdict.quantity} grew by {figure_words(figure)}: {kept}"


def notes(told: MatchedComparison) -> list[str]:
    """Everything that limits the comparison."""
    found = []
    for side, capture in (("the first", told.before), ("the second", told.after)):
        process = capture.process
        if process.stop_reason:
            found.append(f"recording stopped early in {side} capture: {process.stop_reason}")
        if capture.lost_events:
            found.append(f"{capture.lost_events:,} events were lost in {side} capture")
        found += [f"{side} capture: {what}" for what in capture.shortcomings]
        if process.ended == "recording":
            found.append(f"the program of {side} capture still runs: its figures are as of a moment ago")
        found += [f"{side} capture contradicts itself: {problem}" for problem in capture.problems()]
    for what in ("python", "mode"):
        words = [getattr(capture.process, what) for capture in (told.before, told.after)]
        if words[0] != words[1] and all(words):
            name = {"python": "Python", "mode": "the kind of recording"}[what]
            found.append(f"{name} differs: {words[0]}, then {words[1]}")
    return found
