"""Call paths without recursion, for formats that write every frame of every stack: their size is depth × stacks.

The rule: if a frame is already on its stack, its callees count as called by the outer one, and the frames between the
two are left out. So `a → b → a → b → c` becomes `a → b → c`, and no path has more frames than there are distinct ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hiwater.analysis.call_tree import CallTree
from hiwater.capture.paths import Ints

_OTHER_CHARACTERS = 10  # of a frame's text, in addition to function and file: blanks, brackets, line
_ESCAPED = 10  # characters that stand for one, at most


def text_bytes(call_tree: CallTree) -> Ints:
    """For each node, the approximate length of the text of its path, written whole."""
    if not call_tree.frames:
        return np.zeros_like(call_tree.key)
    names = np.array([_length(frame.function) + _length(frame.file) for frame in call_tree.frames], np.int64)
    return _along_paths(call_tree, names[call_tree.key] + _OTHER_CHARACTERS)


def _length(name: str) -> int:
    return len(name) if name.isascii() and name.isprintable() else len(name) * _ESCAPED


def _along_paths(call_tree: CallTree, values: Ints) -> Ints:
    """For each node, the sum of `values` from the root to the node. Each pass doubles the distance: 20,000 frames
    take 15 passes."""
    total = np.where(call_tree.stands, values, 0)
    total[:1] = 0
    above = call_tree.parent
    while above.any():
        total += total[above]
        above = above[above]
    return total


def once(call_tree: CallTree) -> CallTree:
    """The same call paths by the rule above. Takes a step for each node, whatever the depth."""
    return _Unfolding(call_tree).done()


class _Unfolding:
    """A walk over the paths without recursion, which grow on the way.

    Each node of the call tree waits at a path until that is walked through, and then its callees are given to paths: to
    the one on the way that has their frame already, else to one below.
    """

    def __init__(self, call_tree: CallTree) -> None:
        self._call_tree = call_tree
        stands = call_tree.stands
        stands[:1] = False
        callees = np.flatnonzero(stands)
        callees = callees[np.argsort(call_tree.parent[callees], kind="stable")]
        self._first = np.searchsorted(call_tree.parent[callees], np.arange(len(call_tree.parent) + 1)).tolist()
        self._callees = callees.tolist()
        self._key = call_tree.key.tolist()
        self._path_of = [0] * len(call_tree.parent)
        self._parent, self._path_key = [0], [0]
        self._below: dict[tuple[int, int], int] = {}
        self._on_the_way: dict[int, int] = {}  # frame → path
        self._waiting: list[list[int]] = [[0]]  # for each path, nodes whose callees have no path yet
        self._next: list[list[int]] = [[]]  # for each path, those below it where nodes wait

    def done(self) -> CallTree:
        path = 0
        while True:
            self._expand(path)
            if self._next[path]:
                path = self._next[path].pop()
                self._on_the_way[self._path_key[path]] = path
            elif path == 0:
                break
            else:
                del self._on_the_way[self._path_key[path]]
                path = self._parent[path]
        place = np.array(self._path_of, np.int64)[self._call_tree.place]
        parent, key = np.array(self._parent, np.int64), np.array(self._path_key, np.int64)
        return replace(self._call_tree, parent=parent, key=key, place=place)

    def _expand(self, path: int) -> None:
        """Give the callees of all nodes that wait here to paths."""
        while self._waiting[path]:
            node = self._waiting[path].pop()
            for callee in self._callees[self._first[node] : self._first[node + 1]]:
                key = self._key[callee]
                target = self._on_the_way.get(key)
                if target is None:
                    target = self._path_below(path, key)
                self._path_of[callee] = target
                self._waiting[target].append(callee)

    def _path_below(self, path: int, key: int) -> int:
        known = self._below.get((path, key))
        if known is None:
            known = self._below[path, key] = len(self._parent)
            self._parent.append(path)
            self._path_key.append(key)
            self._waiting.append([])
            self._next.append([])
        if not self._waiting[known]:
            self._next[path].append(known)
        return known
