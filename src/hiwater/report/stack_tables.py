"""Call paths as tables for JSON, so that depth costs nothing: distinct frames, and nodes with the numbers of their
caller and frame.

    "frames": [{"function": …, "file": …, "line": …}, …]
    "nodes":  [{"parent": null, "frame": 0}, {"parent": 0, "frame": 1}, …]

A stack is the number of its innermost node, null if it has no frame. Callers come before their callees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO, TypedDict

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree
from hiwater.capture import Frame
from hiwater.capture.paths import Ints
from hiwater.report.document import frame_data

_ROWS_AT_ONCE = 50_000


class PathNode(TypedDict):
    """A call path."""

    parent: int | None
    """place in `nodes` of the caller, which stands before what it calls; null for the outermost frame"""
    frame: int
    """place in `frames`"""


class StackTables:
    """Tables to which nodes of several call trees can be added. Equal frames have one number in all of them."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._parents: list[Ints] = []
        self._keys: list[Ints] = []
        self._length = 0

    def add(self, call_tree: CallTree, nodes: Ints) -> Ints:
        """Add the paths of these nodes. Returns the number of each node of the call tree, -1 for nodes that are not
        in the tables."""
        used = np.zeros(len(call_tree.parent), bool)
        used[call_tree.place[nodes]] = True
        sums.with_callers(call_tree.parent, used)[:1] = False
        chosen = np.flatnonzero(used)
        number = np.full(len(used), -1, np.int64)
        number[chosen] = self._length + np.arange(len(chosen))
        keys, back = np.unique(call_tree.key[chosen], return_inverse=True)
        known = np.array([self._frame(call_tree.frames[key]) for key in keys.tolist()], np.int64)
        self._append(number[call_tree.parent[chosen]], known[back] if len(keys) else back)
        return number[call_tree.place]

    def add_frames(self, frames: Iterable[Frame]) -> list[int]:
        """Add each of these frames as a path of its own, and return their numbers."""
        keys = np.array([self._frame(frame) for frame in frames], np.int64)
        first = self._length
        self._append(np.full(len(keys), -1, np.int64), keys)
        return list(range(first, self._length))

    def _frame(self, frame: Frame) -> int:
        return self._frames.setdefault(frame, len(self._frames))

    def _append(self, parents: Ints, keys: Ints) -> None:
        self._parents.append(parents)
        self._keys.append(keys)
        self._length += len(parents)

    def write(self, stream: TextIO) -> None:
        """The members "frames" and "nodes" of an object, without a comma behind them."""
        stream.write('"frames": [')
        _write_rows(stream, map(json.dumps, map(frame_data, self._frames)))
        stream.write('],\n "nodes": [')
        parents, keys = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (self._parents, self._keys))
        # In parts: all at once, Python's numbers would use ten times the memory of the arrays.
        parts = (slice(first, first + _ROWS_AT_ONCE) for first in range(0, len(keys), _ROWS_AT_ONCE))
        rows = (
            f'{{"parent":{node_text(parent)},"frame":{key}}}'
            for part in parts
            for parent, key in zip(parents[part].tolist(), keys[part].tolist(), strict=True)
        )
        _write_rows(stream, rows)
        stream.write("]")


def node_text(number: int) -> str:
    """A node's number as JSON: null for -1."""
    return "null" if number < 0 else str(number)


def _write_rows(stream: TextIO, rows: Iterable[str]) -> None:
    separator = "\n"
    for row in rows:
        stream.write(separator + row)
        separator = ",\n"
