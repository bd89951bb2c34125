"""The call paths of a capture as threads and frames. A path may be tens of thousands of frames long: it is made when it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import CODE_THREAD
from hiwater.capture.reader import Records

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack. `file` is empty and `line` 0 for what is not Python code."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function


def thread_roots(nodes: Records, codes: Records) -> npt.NDArray[np.bool_]:
    """For each node, whether it stands for a thread and not for a frame."""
    is_root: npt.NDArray[np.bool_] = nodes["parent"] == 0
    is_root &= codes["kind"][nodes["code"]] == CODE_THREAD
    is_root[:1] = False
    return is_root


class Paths:
    """Threads and frames of nodes. Frames are made once for each code and line."""

    def __init__(self, nodes: Records, codes: Records, string: Callable[[int], str]) -> None:
        self._string = string
        self._codes = codes
        self._parent: Ints = nodes["parent"].astype(np.int64)
        self._parent[:1] = 0
        self._place: Ints = nodes["code"].astype(np.int64) << 32 | nodes["line"]
        self._known: dict[int, Frame] = {}
        self.is_thread = thread_roots(nodes, codes)

    @cached_property
    def _root(self) -> Ints:
        """The outermost node of each node's path. By doubling: a path 20,000 long takes 15 passes."""
        root = np.where(self._parent == 0, np.arange(len(self._parent)), self._parent)
        while not np.array_equal(further := root[root], root):
            root = further
        return root

    def threads(self, nodes: Ints) -> tuple[list[str], Ints]:
        """Distinct names of threads, and for each of these nodes which of them it is; "" for paths that begin in none."""
        root = self._root[nodes]
        distinct, back = np.unique(np.where(self.is_thread[root], root, 0), return_inverse=True)
        numbers: dict[str, int] = {}  # a thread that was renamed has a root of its own, whatever its name is
        names = [self._function(node) if node else "" for node in distinct.tolist()]
        numbered = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
        return list(numbers), numbered[back]

    def thread(self, node: int) -> str:
        """The name of the thread that a node's path begins in."""
        root = self._root.item(node)
        return self._function(root) if self.is_thread.item(root) else ""

    def frames(self, node: int) -> tuple[Frame, ...]:
        """The frames of a node's path, root first."""
        path, parent, is_thread = [], self._parent.item, self.is_thread.item
        while node and not is_thread(node):
            path.append(node)
            node = parent(node)
        return tuple(map(self._frame, self._place[np.array(path[::-1], np.int64)].tolist()))

    def _frame(self, place: int) -> Frame:
        found = self._known.get(place)
        if found is None:
            code = self._codes[place >> 32]
            function, file = (self._string(int(code[name])) for name in ("function", "file"))
            found = self._known[place] = Frame(function, file, place & 0xFFFFFFFF)
        return found

    def _function(self, node: int) -> str:
        return self._string(int(self._codes["function"][self._place.item(node) >> 32]))
