"""What changed between two captures: the peaks, the totals, and the call paths that held more or less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import numpy.typing as npt

from hiwater.analysis import ranking
from hiwater.analysis.call_tree import CallTree, Grouping, build_call_tree
from hiwater.analysis.matching import Matching, Side, SourceText
from hiwater.analysis.naming import function_of
from hiwater.analysis.source import as_recorded
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture import Capture, Frame, Snapshot
from hiwater.capture.comparison import Change, Changes, ComparedFigure, Comparison
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.snapshot import Holdings
from hiwater.errors import BadRequest

GROUPINGS = (Grouping.stack, Grouping.function, Grouping.line, Grouping.file, Grouping.module)
SHOWN_KINDS = ("all", *COUNTED_KINDS)
_FEW = 10


class _ListedChanges(Changes):
    """Changes of a few things, all made at once."""

    def __init__(self, changes: list[Change]) -> None:
        self._changes = changes

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | Sequence[Change]:
        return self._changes[index]

    @property
    def bytes(self) -> int:
        return sum(change.bytes for change in self._changes)

    @property
    def grew(self) -> Changes:
        return _ListedChanges([change for change in self._changes if change.direction > 0])

    @property
    def shrank(self) -> Changes:
        return _ListedChanges([change for change in self._changes if change.direction < 0])

    def after(self, first: int) -> Changes:
        return _ListedChanges(self._changes[first:])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MatchedComparison(Comparison[Capture]):
    """A comparison with the names that frames of both captures have in common."""

    matching: Matching

    @property
    def causes(self) -> list[Change]:
        """The lines that explain the net change: the one that changed most in its direction, and the one that
        changed most against it if that is more than a tenth of the first. In captures that contradict themselves
        there may be none in its direction."""
        net, lines = self.allocated.change, self.lines
        if net is None or not lines:
            return []
        rises = (net or lines[0].bytes) > 0
        along, against = (lines.grew, lines.shrank) if rises else (lines.shrank, lines.grew)
        first = [*along[:1]]
        return [*first, *(one for one in against[:1] if abs(one.bytes) * _FEW > sum(abs(most.bytes) for most in first))]


@dataclass(frozen=True, slots=True)
class Limit:
    """By how much the compared figure may grow: in bytes, or in percent of what was before."""

    bytes: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a limit was kept, which figure it was asked of, and both in words."""

    kept: bool
    quantity: str
    figure: ComparedFigure
    limit: Limit


def judge(comparison: Comparison[Capture], limit: Limit) -> Verdict:
    """Hold what is compared against a limit: allocated memory, or the resident peak where nothing else is known.

    An increase that may be chance (within two standard errors) keeps every limit. From nothing, any increase is above
    any percentage.
    """
    figure, quantity = comparison.allocated, f"allocated at the {comparison.after_snapshot.name}"
    if comparison.kind != "all":
        quantity = f"{comparison.kind} memory {quantity}"
    if figure.change is None:
        figure, quantity = comparison.resident, "resident at the peak"
    change = figure.change or 0
    if change <= 0 or figure.is_within_error:
        kept = True
    elif limit.bytes is not None:
        kept = change <= limit.bytes
    else:
        kept = figure.percent is not None and figure.percent <= (limit.percent or 0.0)
    return Verdict(kept, quantity, figure, limit)


def compare_as_recorded(
    before: Capture, after: Capture, *, at: str | float = "peak", kind: str = "all", by: str = "stack"
) -> MatchedComparison:
    """The same as `compare`, with the text of lines from the files that have not changed since, and with the device
    of each for the kind "device"."""
    here, there = before.of_kind(kind), after.of_kind(kind)
    if len(here) > 1 or len(there) > 1:
        raise BadRequest(
            "there are several devices",
            "compare one of each: before.device_histories[0].diff(after.device_histories[0])",
        )
    sources = as_recorded(here[0].tables), as_recorded(there[0].tables)
    return compare(here[0], there[0], at=at, kind=kind, by=by, sources=sources)


_NO_SOURCES: tuple[SourceText, SourceText] = (lambda *_: "", lambda *_: "")


def compare(
    before: Capture, after: Capture, *, at: str | float = "peak", kind: str = "all", by: str = "stack",
    sources: tuple[SourceText, SourceText] = _NO_SOURCES,
) -> MatchedComparison:  # fmt: skip
    """Compare two captures at the moment `at` of each (see `Capture.snapshot`).

    `sources` give the text of lines as they were when each was recorded. Raises BadRequest for a kind or grouping that
    is none, MomentOutOfRange, and CorruptCapture when something holds less than nothing.
    """
    if kind not in SHOWN_KINDS:
        raise BadRequest(f"{kind!r} is not a kind of memory", f"choose one of {', '.join(SHOWN_KINDS)}")
    if by not in list(GROUPINGS):
        raise BadRequest(f"captures are not compared by {by!r}", f"choose one of {', '.join(map(str, GROUPINGS))}")
    snapshots = before.snapshot(at), after.snapshot(at)
    comparer = _Comparer((before, after), snapshots, kind, sources)
    totals = {
        name: ComparedFigure(getattr(before.totals, name), getattr(after.totals, name))
        for name in ("allocations", "allocated_bytes", "temporaries")
    }
    return MatchedComparison(
        before, after, *snapshots, kind, Grouping(by),
        peak=_allocated(before, after, before.peak, after.peak, "all"),
        resident=_resident(before, after),
        allocated=_allocated(before, after, *snapshots, kind),
        kinds={name: _allocated(before, after, *snapshots, name) for name in COUNTED_KINDS},
        totals={
            "end_bytes": _allocated(before, after, before.end, after.end, "all"),
            "peak_blocks": ComparedFigure(before.peak.allocated_blocks, after.peak.allocated_blocks),
            **totals,
            "duration_ns": ComparedFigure(before.process.duration_ns, after.process.duration_ns),
        },
        lines=comparer.lines(),
        rows=comparer.stacks() if by == Grouping.stack else comparer.groups(Grouping(by)),
        matching=comparer.matching,
    )  # fmt: skip


def compare_lines(before: Capture, after: Capture) -> Changes:
    """The `lines` of `compare` at the two peaks, without the rest, which takes as long again. Raises CorruptCapture."""
    return _Comparer((before, after), (before.peak, after.peak), "all", _NO_SOURCES).lines()


def _resident(before: Capture, after: Capture) -> ComparedFigure:
    if before.device is not None or after.device is not None:
        return ComparedFigure(None, None)
    return ComparedFigure(before.resident.program_peak_bytes, after.resident.program_peak_bytes)


def _allocated(before: Capture, after: Capture, here: Snapshot, there: Snapshot, kind: str) -> ComparedFigure:
    """What is held of a kind at two moments. A process that was watched from outside told nobody what it allocated."""
    held = [snapshot.holdings(kind) for snapshot in (here, there)]
    known = [
        None if capture.is_timeline else part.total_bytes for capture, part in zip((before, after), held, strict=True)
    ]
    return ComparedFigure(known[0], known[1], _combined(part.standard_error(int(part.sampled.sum())) for part in held))


def _combined(errors: Iterable[int]) -> int:
    """The standard error of a difference or sum of independent estimates: their variances add."""
    return math.ceil(math.sqrt(sum(error * error for error in errors)))


class _Comparer:
    """Both captures with their frames matched, to be looked at at any fineness."""

    def __init__(
        self,
        captures: tuple[Capture, Capture],
        snapshots: tuple[Snapshot, Snapshot],
        kind: str,
        sources: tuple[SourceText, SourceText],
    ) -> None:
        self._captures = captures
        self._holdings = tuple(snapshot.holdings(kind).checked() for snapshot in snapshots)
        self.matching = Matching(*(Side(one.tables, source) for one, source in zip(captures, sources, strict=True)))
        self._name: tuple[Callable[[Frame], tuple[str, str, int]], ...] = (self.matching.before, self.matching.after)

    def lines(self) -> Changes:
        """Every stack given to its innermost line of the user's own code."""
        found: dict[object, list[list[ranking.RankedRow]]] = {}
        for side, (capture, held) in enumerate(zip(self._captures, self._holdings, strict=True)):
            for line in rank_lines(capture.tables, held, never={}).rows:
                rows = found.setdefault(self._name[side](line.frame), [[], []])
                rows[side].append(
                    ranking.RankedRow(line.frame, line.bytes, line.blocks, line.bytes, line.standard_error_bytes)
                )
        return self._changes(found)

    def groups(self, by: Grouping) -> Changes:
        """Rows by function, line, file or module."""
        found: dict[object, list[list[ranking.RankedRow]]] = {}
        for side, (capture, held) in enumerate(zip(self._captures, self._holdings, strict=True)):
            for row in ranking.rank(build_call_tree(capture.tables, by, hide_imports=True), held):
                found.setdefault(self._group(side, by, row.frame), [[], []])[side].append(row)
        return self._changes(found)

    def _group(self, side: int, by: Grouping, frame: Frame) -> object:
        if frame == ranking.NO_FRAME or by == Grouping.module:
            return frame.function
        if by == Grouping.file:  # a row by file has the path in the place of the function
            return frame.function if side else self.matching.file_before(frame.function)
        if by == Grouping.function and not side:
            return self.matching.function_before(frame)
        return self._name[side](frame)

    def _changes(self, found: dict[object, list[list[ranking.RankedRow]]]) -> Changes:
        changes = []
        for both in found.values():
            own = [sum(row.self_bytes for row in rows) for rows in both]
            # Rows of one name are a function and its comprehensions, which it called: its total has theirs.
            totals = [max((held, *(row.total_bytes for row in rows))) for held, rows in zip(own, both, strict=True)]
            if own[0] == own[1] and totals[0] == totals[1]:
                continue
            blocks = [sum(row.self_blocks for row in rows) for rows in both]
            frames = [tuple(sorted((row.frame for row in rows), key=is_comprehension)[:1]) for rows in both]
            error = _combined(row.self_error_bytes for rows in both for row in rows)
            changes.append(
                Change(frames[0], frames[1], "", own[0], own[1], blocks[0], blocks[1], totals[0], totals[1], error)
            )
        return _ListedChanges(sorted(changes, key=_largest_first))

    def stacks(self) -> Changes:
        """Rows by call path and kind of memory; threads are not told apart."""
        numbers = PathNumbers()
        sides = []
        for side, (capture, held) in enumerate(zip(self._captures, self._holdings, strict=True)):
            call_tree = build_call_tree(capture.tables, Grouping.line, hide_imports=True)
            names = [self._name[side](frame) for frame in call_tree.frames]
            leaf = numbers.of(call_tree, names)[call_tree.place[held.node]]
            sides.append((call_tree, held, leaf * len(KINDS) + held.kind))
        return StackChanges(sides)


def is_comprehension(frame: Frame) -> bool:
    """Whether it is part of the function around it: a comprehension, before Python 3.12."""
    return function_of(frame.function) != frame.function


def _largest_first(change: Change) -> tuple[object, ...]:
    by = change.after_total_bytes - change.before_total_bytes
    return -abs(change.bytes), change.bytes < 0, -abs(by), str(change.frames[:1])


class PathNumbers:
    """Numbers for call paths: equal ones, by the names of their frames, have equal numbers in both captures."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}
        self._names: dict[object, int] = {}

    def of(self, call_tree: CallTree, names: Sequence[object]) -> Ints:
        """The number of each node's path."""
        key_of = [self._names.setdefault(name, len(self._names)) for name in names]
        known, numbers = self._known, [0] * len(call_tree.parent)
        stands = call_tree.stands.tolist()
        is_part = [is_comprehension(frame) for frame in call_tree.frames]
        parents, keys = call_tree.parent.tolist(), call_tree.key.tolist()
        for node, (above, key) in enumerate(zip(parents, keys, strict=True)):
            if not node or not stands[node]:
                continue
            if above and is_part[key] and key_of[key] == key_of[keys[above]]:
                numbers[node] = numbers[above]
            else:
                numbers[node] = known.setdefault((numbers[above], key_of[key]), len(known) + 1)
        return np.array(numbers, np.int64)


class StackChanges(Changes):
    """Changes of stacks, made when they are looked at: there may be a million, each tens of thousands of frames deep.

    `call_trees` are the call paths of both captures, and `nodes` has for each change its path in either one: -1 where
    it held nothing.
    """

    def __init__(self, sides: list[tuple[CallTree, Holdings, Ints]]) -> None:
        self._held = [held for _, held, _ in sides]
        self.call_trees = [call_tree for call_tree, _, _ in sides]
        self._known: tuple[dict[int, Frame], dict[int, Frame]] = ({}, {})
        every, back = np.unique(np.concatenate([path for _, _, path in sides]), return_inverse=True)
        # Bytes before and after, blocks before and after, and what of the bytes stands on sampled blocks.
        figures = np.zeros((len(every), 6), np.int64)
        nodes = np.full((len(every), 2), -1, np.int64)
        first = 0
        for side, (call_tree, held, path) in enumerate(sides):
            place = back[first : first + len(path)]
            first += len(path)
            np.add.at(figures[:, side], place, held.bytes)
            np.add.at(figures[:, 2 + side], place, held.blocks)
            np.add.at(figures[:, 4 + side], place, held.sampled)
            nodes[place, side] = call_tree.place[held.node]
        change = figures[:, 1] - figures[:, 0]
        changed = np.flatnonzero(change)
        order = changed[np.lexsort((change[changed] < 0, -np.abs(change[changed])))]
        self._figures, self.nodes, self._kind = figures[order], nodes[order], every[order] % len(KINDS)

    @property
    def bytes(self) -> int:
        return int((self._figures[:, 1] - self._figures[:, 0]).sum())

    @property
    def grew(self) -> Changes:
        return self._part(self._figures[:, 1] > self._figures[:, 0])

    @property
    def shrank(self) -> Changes:
        return self._part(self._figures[:, 1] < self._figures[:, 0])

    def after(self, first: int) -> Changes:
        return self._part(np.arange(len(self)) >= first)

    def _part(self, chosen: npt.NDArray[np.bool_]) -> StackChanges:
        part = copy(self)
        part._figures, part.nodes, part._kind = self._figures[chosen], self.nodes[chosen], self._kind[chosen]
        return part

    def __len__(self) -> int:
        return len(self._kind)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | Sequence[Change]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        before, after = (self._frames(side, int(node)) for side, node in enumerate(self.nodes[index]))
        return replace(self.figures(index), before=before, after=after)

    def figures(self, index: int) -> Change:
        """A change without its frames."""
        before, after, before_blocks, after_blocks, *sampled = self._figures[index].tolist()
        kind = KINDS[int(self._kind[index])]
        error = _combined(held.standard_error(part) for held, part in zip(self._held, sampled, strict=True))
        return Change((), (), kind, before, after, before_blocks, after_blocks, before, after, error)

    def _frames(self, side: int, node: int) -> tuple[Frame, ...]:
        """A path, root first, without the import system's frames; nothing for a node of -1."""
        call_tree, known, frames = self.call_trees[side], self._known[side], []
        while node > 0:
            key = int(call_tree.key[node])
            frame = known.get(key)
            if frame is None:
                frame = known[key] = call_tree.frames[key]
            frames.append(frame)
            node = int(call_tree.parent[node])
        return tuple(reversed(frames))
