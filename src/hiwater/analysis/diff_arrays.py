"""Two captures in the arrays of one: the later one compacted, and the figures of the earlier one for each holder.

- place: a thread's name, and a call path by the names that `matching` gives to its frames. Nodes of both captures at
  one place are the same holder. (The rows of a diff do not distinguish threads.)
- gone: a call path or a frame that only the earlier capture has: it follows those of the later capture, and holds
  nothing there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import Grouping, build_call_tree, follow
from hiwater.analysis.compact import MERGED_FRAME, Bools, CompactedCapture, Limits, compact
from hiwater.analysis.diff import MatchedComparison, PathNumbers, is_comprehension
from hiwater.analysis.matching import Key, Matching
from hiwater.analysis.naming import function_of
from hiwater.capture import Capture, Frame
from hiwater.capture.paths import Ints, sum_at

_Place = tuple[int, int, bool]  # thread, path, whether its last frame is a comprehension's


@dataclass(frozen=True, slots=True, eq=False)
class CompactedDiff:
    """`compacted` is the later capture, with everything that is gone.

    `columns` has int64 arrays with one element for each of its holders: `before_peak_bytes`, `before_end_bytes`, and
    `delta_bytes`, the growth between the compared moments. `frame_is_gone` has an element for each frame. `gone_files`
    are the files that the later capture does not have. The frame of a comprehension has the name of the function around
    it, to which a comparison counts it.
    """

    compacted: CompactedCapture
    columns: dict[str, Ints]
    frame_is_gone: Bools
    gone_files: frozenset[str]


def compact_diff(comparison: MatchedComparison, limits: Limits | None = None) -> CompactedDiff:
    """The later capture of a comparison, with the figures of the earlier one. Of the holders that are gone, the
    largest are kept, up to half of the limits. The others are merged, like the smaller stacks of the later capture."""
    bounds = limits or Limits()
    later, paths, threads = compact(comparison.after, bounds), PathNumbers(), dict[str, int]()
    after = _Side(comparison.after, paths, threads, comparison.matching.after)
    before = _Side(comparison.before, paths, threads, comparison.matching.before)
    earlier = comparison.before
    snapshots = {"peak": earlier.peak.bytes, "end": earlier.end.bytes, "asked": comparison.before_snapshot.bytes}
    most = np.max(list(snapshots.values()), axis=0, initial=0)
    partner = _partners(before, after, later.holder_of_account)
    gone = np.flatnonzero((partner < 0) & (most != 0))
    gone = gone[np.argsort(-most[gone], kind="stable")]
    union = _Union(later, before, after, comparison.matching)
    merged = union.add_gone(gone, partner, bounds)
    later = replace(
        later,
        merged_stacks=later.merged_stacks + len(merged),
        merged_most_bytes=max(later.merged_most_bytes, int(most[merged].max(initial=0))),
    )
    whole = union.whole(later)
    length = len(whole.holder_node)
    held = {name: _summed(length, partner, values) for name, values in snapshots.items()}
    now = _summed(length, later.holder_of_account, comparison.after_snapshot.bytes)
    columns = {"before_peak_bytes": held["peak"], "before_end_bytes": held["end"], "delta_bytes": now - held["asked"]}
    return CompactedDiff(whole, columns, np.array(union.is_gone, bool), frozenset(union.gone_files))


def _summed(length: int, index: Ints, values: Ints) -> Ints:
    counts = index >= 0
    return sum_at(length, index[counts], values[counts])


class _Side:
    """One of the two captures, with the place of each of its nodes."""

    def __init__(
        self, capture: Capture, paths: PathNumbers, threads: dict[str, int], name: Callable[[Frame], Key]
    ) -> None:
        self.capture = capture
        self.call_tree = build_call_tree(capture.tables, Grouping.line)
        self.frames, self.functions = list(self.call_tree.frames), list(self.call_tree.functions)
        self.names = [name(frame) for frame in self.frames]
        self.parent = capture.tables.paths.parent
        self.is_part = np.array([is_comprehension(frame) for frame in self.frames], bool)
        self._path = paths.of(self.call_tree, self.names)
        self._thread = self._threads(threads)

    def _threads(self, numbers: dict[str, int]) -> Ints:
        """The number of each node's thread; equal names have equal numbers in both captures."""
        own, is_root = np.arange(len(self.parent)), self.capture.tables.paths.is_thread
        root = follow(np.where(is_root | (self.parent == 0), own, self.parent))
        number = np.full(len(own), numbers.setdefault("", 0), np.int64)
        roots = np.flatnonzero(is_root)
        names, name = self.capture.tables.paths.threads(roots)
        known = np.array([numbers.setdefault(text, len(numbers)) for text in names], np.int64)
        number[roots] = known[name]
        return number[root]

    def place(self, node: int) -> _Place:
        return int(self._thread[node]), int(self._path[node]), bool(self.is_part[self.call_tree.key[node]])

    def account_places(self) -> Iterable[tuple[int, int, int, bool, bool]]:
        """(thread, path, kind, whether of sampled blocks, whether a comprehension's) of each account."""
        node = self.capture.tables.account_node
        columns = (
            self._thread[node], self._path[node], self.capture.tables.account_kind,
            self.capture.tables.account_is_sampled, self.is_part[self.call_tree.key[node]],
        )  # fmt: skip
        return zip(*(column.tolist() for column in columns), strict=True)


def _partners(before: _Side, after: _Side, holder_of_account: Ints) -> Ints:
    """For each account of the earlier capture, the index of the later capture's holder at its place; -1 if there is
    none.

    Whether a comprehension has a frame of its own depends on the version of Python. A place that agrees in this is
    preferred.
    """
    exact: dict[tuple[object, ...], int] = {}
    alike: dict[tuple[object, ...], int] = {}
    for place, holder in zip(after.account_places(), holder_of_account.tolist(), strict=True):
        if holder >= 0:
            exact.setdefault(place, holder)
            alike.setdefault(place[:4], holder)
    found = [exact.get(place, alike.get(place[:4], -1)) for place in before.account_places()]
    return np.array(found, np.int64)


class _Union:
    """The call paths and holders of the later capture. Those that are gone are added."""

    def __init__(self, later: CompactedCapture, before: _Side, after: _Side, matching: Matching) -> None:
        self._before, self._matching = before, matching
        self._parent, self._frame, self._frames = later.parent.tolist(), later.frame.tolist(), list(later.frames)
        self._functions = list(later.functions)
        self._threads = dict(later.threads)
        self._holders = list(
            zip(later.holder_node.tolist(), later.holder_kind.tolist(), later.holder_is_sampled.tolist(), strict=True)
        )
        self.is_gone = [False] * len(self._frames)
        self.gone_files: set[str] = set()
        self._frame_number = {(frame, False): number for number, frame in enumerate(self._frames)}
        self._exact: dict[_Place, int] = {}
        self._alike: dict[tuple[int, int], int] = {}
        for path, node in enumerate(later.node_of_path.tolist()):
            if node >= 0:
                self._register(after.place(node), path)
        self._known = dict[tuple[Key, bool], tuple[Frame, Frame]]()
        for frame, function, name, is_part in zip(
            after.frames, after.functions, after.names, after.is_part.tolist(), strict=True
        ):
            self._known.setdefault((name, is_part), (frame, function))
        self._merges = {self._parent[path]: path for path, node in enumerate(later.node_of_path.tolist()) if node < 0}
        self._merge_holders = {
            holder: number for number, holder in enumerate(self._holders) if later.node_of_path[holder[0]] < 0
        }

    def _register(self, place: _Place, path: int) -> None:
        self._exact.setdefault(place, path)
        self._alike.setdefault(place[:2], path)

    def _find(self, node: int) -> int | None:
        place = self._before.place(node)
        return self._exact.get(place, self._alike.get(place[:2]))

    def add_gone(self, accounts: Ints, partner: Ints, limits: Limits) -> Ints:
        """Add a holder for each of these accounts of the earlier capture, largest first, and store its index in
        `partner`. Returns the accounts whose holders were merged."""
        most_paths, given = len(self._parent) + limits.nodes // 2, 0
        for account in accounts[: limits.holders // 2].tolist():
            path = self._added(int(self._before.capture.tables.account_node[account]), most_paths - len(self._parent))
            if path is None:
                break
            partner[account] = len(self._holders)
            self._holders.append((path, *self._what(account)))
            given += 1
        for account in accounts[given:].tolist():
            partner[account] = self._merge(account)
        return accounts[given:]

    def _what(self, account: int) -> tuple[int, bool]:
        capture = self._before.capture
        return int(capture.tables.account_kind[account]), bool(capture.tables.account_is_sampled[account])

    def _added(self, node: int, room: int) -> int | None:
        """The path at a node's place. If there is none, it is added with its callers; None if that takes more than
        `room` paths."""
        missing = []
        while (path := self._find(node)) is None:
            missing.append(node)
            node = int(self._before.parent[node])
        if len(missing) > room:
            return None
        for one in reversed(missing):
            self._parent.append(path)
            path = len(self._parent) - 1
            self._frame.append(self._frame_of(one, path))
            self._register(self._before.place(one), path)
        return path

    def _frame_of(self, node: int, path: int) -> int:
        """The number of the frame of a path that is gone: the matching frame of the later capture, or a frame that
        is gone, too."""
        side = self._before
        key = int(side.call_tree.key[node])
        frame, function, is_gone = side.frames[key], side.functions[key], False
        if side.capture.tables.paths.is_thread[node]:
            self._threads[path] = side.capture.tables.paths.thread(node)
        else:
            name, is_part = side.names[key], bool(side.is_part[key])
            match = self._known.get((name, is_part)) or self._known.get((name, not is_part))
            is_gone = match is None
            frame, function = match or (
                Frame(frame.function, self._file_of(frame.file), frame.line),
                Frame(function.function, self._file_of(function.file), self._matching.function_before(function)[2]),
            )
        return self._number(frame, function, is_gone)

    def _number(self, frame: Frame, function: Frame, is_gone: bool) -> int:
        number = self._frame_number.setdefault((frame, is_gone), len(self._frames))
        if number == len(self._frames):
            self._frames.append(frame)
            self._functions.append(function)
            self.is_gone.append(is_gone)
        return number

    def _file_of(self, file: str) -> str:
        """The later capture's name of a file of the earlier one."""
        name = self._matching.file_before(file)
        if name.startswith("\0"):
            self.gone_files.add(file)
            return file
        return name

    def _merge(self, account: int) -> int:
        """The holder of merged stacks below the nearest path that both captures have."""
        node = int(self._before.capture.tables.account_node[account])
        while (path := self._find(node)) is None:
            node = int(self._before.parent[node])
        if path not in self._merges:
            self._merges[path] = len(self._parent)
            self._parent.append(path)
            self._frame.append(self._number(MERGED_FRAME, MERGED_FRAME, is_gone=False))
        holder = (self._merges[path], *self._what(account))
        number = self._merge_holders.setdefault(holder, len(self._holders))
        if number == len(self._holders):
            self._holders.append(holder)
        return number

    def whole(self, later: CompactedCapture) -> CompactedCapture:
        """The capture with all paths and holders, numbered depth first. Holders that are gone have no figures."""
        parent, frame = np.array(self._parent, np.int64), np.array(self._frame, np.int64)
        enter = sums.walk(parent).enter
        parents, frames = np.empty_like(parent), np.empty_like(frame)
        parents[enter], frames[enter] = enter[parent], frame
        origin = np.full(len(parent), -1)
        origin[enter[: len(later.parent)]] = later.node_of_path
        nodes, kinds, sampled = (np.array(column) for column in zip(*self._holders, strict=True))
        none = np.zeros(len(nodes) - len(later.holder_node), np.int64)
        return replace(
            later,
            parent=parents,
            frame=frames,
            frames=[replace(frame, function=function_of(frame.function)) for frame in self._frames],
            functions=self._functions,
            threads={int(enter[path]): name for path, name in self._threads.items()},
            holder_node=enter[nodes],
            holder_kind=kinds,
            holder_is_sampled=sampled,
            columns={name: np.append(values, none) for name, values in later.columns.items()},
            node_of_path=origin,
        )
