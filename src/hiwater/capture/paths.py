"""The call paths of a capture as threads and frames. A path may have tens of thousands of frames, so it is made at
its access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import CODE_THREAD
from hiwater.capture.references import Records

Ints = npt.NDArray[np.int64]


_NAME_SHOWN = 60  # characters of a name in a `__repr__`


def sum_at(length: int, index: Ints, values: Ints) -> Ints:
    """An int64 array of `length`: element i is the sum of the `values` whose `index` is i. numpy's bincount would
    compute in floats."""
    summed = np.zeros(length, np.int64)
    np.add.at(summed, index, values)
    return summed


def sums_over_time(changes: Sequence[tuple[Ints, ...]]) -> list[Ints]:
    """Each has times and several columns of what changes then: distinct times, and the sum of each column up to
    each."""
    times, back = np.unique(np.concatenate([one[0] for one in changes]), return_inverse=True)
    columns = (np.concatenate([one[field] for one in changes]) for field in range(1, len(changes[0])))
    return [times, *(np.cumsum(sum_at(len(times), back, column)) for column in columns)]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack. If it is not Python code, `file` is empty and `line` is 0."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function


def describe_innermost(frames: Sequence[Frame]) -> str:
    """The last frame in few characters, for a `__repr__`; "" without frames."""
    if not frames:
        return ""
    frame = frames[-1]
    place = f" ({os.path.basename(frame.file)[-_NAME_SHOWN:]}:{frame.line})" if frame.file else ""
    return f" at {frame.function[:_NAME_SHOWN] + place!r}"


def numbered(texts: Iterable[str]) -> tuple[list[str], Ints]:
    """The distinct texts in the order in which they come first, and for each text its index among them."""
    numbers: dict[str, int] = {}
    index_of = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return list(numbers), index_of


def thread_roots(nodes: Records, codes: Records) -> npt.NDArray[np.bool_]:
    """For each node, whether it is a thread and not a frame: a bool array with one element for each node."""
    is_root: npt.NDArray[np.bool_] = nodes["parent"] == 0
    is_root &= codes["kind"][nodes["code"]] == CODE_THREAD
    is_root[:1] = False
    return is_root


class Paths:
    """Threads and frames of nodes. Frames are made once for each code and line."""

    def __init__(self, nodes: Records, codes: Records, string: Callable[[int], str]) -> None:
        self._string = string
        self._codes = codes
        self.parent: Ints = nodes["parent"].astype(np.int64)
        """For each node, the node of its caller; 0 for none."""
        self.place: Ints = nodes["code"].astype(np.int64) << 32 | nodes["line"]
        """For each node, the code object and, in the lower 32 bits, the line."""
        self._known: dict[int, Frame] = {}
        self.is_thread = thread_roots(nodes, codes)

    @cached_property
    def _root(self) -> Ints:
        """The outermost node of each node's path. Each pass doubles the distance: 20,000 frames take 15 passes."""
        root = np.where(self.parent == 0, np.arange(len(self.parent)), self.parent)
        while not np.array_equal(further := root[root], root):
            root = further
        return root

    def threads(self, nodes: Ints) -> tuple[list[str], Ints]:
        """The distinct names of threads, and for each of these nodes the index of its thread's name; "" for paths
        without a thread."""
        root = self._root[nodes]
        distinct, back = np.unique(np.where(self.is_thread[root], root, 0), return_inverse=True)
        # A thread that was renamed has a root of its own, whatever its name is.
        names, number = numbered(self._function(node) if node else "" for node in distinct.tolist())
        return names, number[back]

    def thread(self, node: int) -> str:
        """The name of the thread that a node's path begins in."""
        root = self._root.item(node)
        return self._function(root) if self.is_thread.item(root) else ""

    def frames(self, node: int) -> tuple[Frame, ...]:
        """The frames of a node's path, root first."""
        path, parent, is_thread = [], self.parent.item, self.is_thread.item
        while node and not is_thread(node):
            path.append(node)
            node = parent(node)
        return tuple(map(self._frame, self.place[np.array(path[::-1], np.int64)].tolist()))

    def _frame(self, place: int) -> Frame:
        found = self._known.get(place)
        if found is None:
            code = self._codes[place >> 32]
            function, file = (self._string(int(code[name])) for name in ("function", "file"))
            found = self._known[place] = Frame(function, file, place & 0xFFFFFFFF)
        return found

    def _function(self, node: int) -> str:
        return self._string(int(self._codes["function"][self.place.item(node) >> 32]))


@dataclass(frozen=True, slots=True)
class AtCallPath:
    """A part of a capture that has a call path: `thread` is the thread's name, `node` the path's number in the table
    of nodes."""

    thread: str
    node: int
    _paths: Paths = field(repr=False, compare=False)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The call path, root first; empty if it is unknown. Made at each access, because many parts may have long
        paths."""
        return self._paths.frames(self.node)
