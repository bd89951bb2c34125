"""What a view of a comparison is asked to show, and the words that all of them use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from hiwater._os import sizes
from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.diff import MatchedComparison, Verdict
from hiwater.capture import Capture
from hiwater.capture.comparison import Change, Changes, ChangeState, ComparedFigure
from hiwater.capture.document_types import Signed
from hiwater.report.document import FrameData, frame_data
from hiwater.report.formatting import place_text, signed_percent, signed_size, size
from hiwater.report.request import Report, process_words


@dataclass(frozen=True)
class DiffReport:
    """A comparison as asked for. `by` is None where nobody asked for one grouping alone: then lines and stacks are
    shown."""

    comparison: MatchedComparison
    by: str | None = None
    top: int = 10
    verdict: Verdict | None = None
    processes: tuple[MatchedComparison, ...] = ()
    """Of merged captures, all that were compared; `comparison` is what grew most."""
    unmatched: tuple[int, int] = (0, 0)  # processes of either side that have no partner on the other
    frames: str = "python"  # which frames a page shows at first

    @property
    def notes(self) -> list[str]:
        """Everything that limits the comparison."""
        found = notes(self.comparison)
        if len(self.processes) > 1:
            count = process_words([one.after for one in self.processes])
            found.insert(0, f"of {count}, the one that grew most is shown: {self.after.process}")
        gone, new = self.unmatched
        if gone or new:
            found.append(f"processes without a partner: {gone} of the first capture, {new} of the second")
        return found

    @property
    def before(self) -> Report:
        return self.sides(self.comparison)[0]

    @property
    def after(self) -> Report:
        return self.sides(self.comparison)[1]

    @property
    def exactness(self) -> str:
        """How far the allocated figures of both sides can be trusted."""
        return _both(*(side.exactness(side.capture.peak) for side in (self.before, self.after)))

    @property
    def resident_exactness(self) -> str:
        """How far the resident peaks of both sides can be trusted."""
        return _both(resident_exactness(self.comparison.before), resident_exactness(self.comparison.after))

    def sides(self, comparison: MatchedComparison) -> tuple[Report, Report]:
        """Both captures of one of the comparisons as reports have them."""
        by = Grouping(self.by) if self.by else None
        before, after = (
            Report(capture, snapshot, comparison.kind, by, is_one_of_several=bool(self.processes), frames=self.frames)
            for capture, snapshot in (
                (comparison.before, comparison.before_snapshot),
                (comparison.after, comparison.after_snapshot),
            )
        )
        return before, after

    @property
    def sections(self) -> list[tuple[str, Changes]]:
        """The tables of the report: a title and the changes below it, the largest first; empty ones are left out."""
        comparison = self.comparison
        tables = [(self.by, comparison.rows)] if self.by else [("line", comparison.lines), ("stack", comparison.rows)]
        remarks = {"line": "" if self.by else "your code and everything it called", "stack": "innermost frame first"}
        found = []
        directions = ("grew", "shrank") if (comparison.allocated.change or 0) >= 0 else ("shrank", "grew")
        for by, changes in tables:
            assert by is not None
            remark = f" ({remarks[by]})" if remarks.get(by) else ""
            for word in directions:
                shown: Changes = getattr(changes, word)
                if shown:
                    found.append((f"{by.capitalize()}s that {word}{remark}", shown))
        return found


def headline(comparison: MatchedComparison) -> str:
    """The net change and its causes, in one line: what every view of a comparison leads with."""
    kind = "" if comparison.kind == "all" else f" of {comparison.kind} memory"
    figure, what = comparison.allocated, f"{kind} allocated at {_moment(comparison)}"
    if figure.change is None:
        figure, what = comparison.resident, " resident at the peak"
    if figure.change is None:
        return "the two captures have no figure in common"
    said = f"{figure_words(figure)}{what}"
    causes = comparison.causes
    if not causes:
        return said
    first, *others = (f"{signed_size(one.bytes)} at {_place(comparison, one)}{_state(one)}" for one in causes)
    all_along = comparison.lines.grew if causes[0].bytes > 0 else comparison.lines.shrank
    mostly = "mostly" if 2 * abs(causes[0].bytes) >= abs(all_along.bytes) else "the largest part"
    return "; ".join([f"{said}: {mostly} {first}", *others])


def _moment(comparison: MatchedComparison) -> str:
    name = comparison.after_snapshot.name
    return "the highest moment asked for" if name == "slice" else f"the {name}"


def _place(comparison: MatchedComparison, change: Change) -> str:
    capture = comparison.after if change.after else comparison.before
    return place_text(change.frames[-1], capture.facts.get("cwd", ""), 80) if change.frames else "no Python frame"


def _state(change: Change) -> str:
    return f" ({change.state})" if change.state in ("new", "gone", "within error") else ""


class CauseOfChange(FrameData):
    """A line of the user's own code that changed."""

    change_bytes: Signed
    state: ChangeState


class HeadlineData(TypedDict):
    """The net change and its largest causes: what every view of the comparison leads with."""

    change_bytes: Signed | None
    """after − before of what is compared; null where a capture does not have it"""
    causes: list[CauseOfChange]
    """the line of the user's own code that changed most in the direction of the net change, and the one that changed
    most against it if that is not small"""
    words: str
    """the same in one line"""


def headline_data(comparison: MatchedComparison) -> HeadlineData:
    """The headline as data."""
    causes: list[CauseOfChange] = [
        {"change_bytes": one.bytes, "state": one.state, **frame_data(one.frames[-1] if one.frames else None)}
        for one in comparison.causes
    ]
    return {"change_bytes": comparison.allocated.change, "causes": causes, "words": headline(comparison)}


def resident_exactness(capture: Capture) -> str:
    """How far the resident peak of one side can be trusted."""
    if capture.device is not None:
        return "none of RAM"
    resident = capture.resident
    if not resident.peak_bytes:
        return sizes.NOT_MEASURED
    phrase = sizes.accuracy_of_peak(exact=resident.exact, error_bytes=resident.error_bytes)
    if resident.exact:
        return phrase
    return f"{phrase}: {'as last read before it was killed' if capture.died_unread else 'highest sample'}"


def _both(before: str, after: str) -> str:
    """One word for both sides where they agree."""
    return before if before == after else f"{before}; then {after}"


def snapshot_words(comparison: MatchedComparison) -> str:
    seconds = [f"{snapshot.at_ns / 1e9:.2f} s" for snapshot in (comparison.before_snapshot, comparison.after_snapshot)]
    kind = "" if comparison.kind == "all" else f"{comparison.kind} memory at "
    return f"{kind}{_moment(comparison)}, at {seconds[0]} and {seconds[1]}"


def figure_words(figure: ComparedFigure) -> str:
    if figure.change is None:
        return "not known in both"
    error = (
        f", within error ({sizes.accuracy_of_estimate(figure.standard_error_bytes)})" if figure.is_within_error else ""
    )
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


def notes(comparison: MatchedComparison) -> list[str]:
    """Everything that limits the comparison."""
    found = []
    for side, capture in (("the first", comparison.before), ("the second", comparison.after)):
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
        words = [getattr(capture.process, what) for capture in (comparison.before, comparison.after)]
        if words[0] != words[1] and all(words):
            name = {"python": "Python", "mode": "the kind of recording"}[what]
            found.append(f"{name} differs: {words[0]}, then {words[1]}")
    return found
