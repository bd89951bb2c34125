"""The texts of very many call paths, at the speed of copying, for formats that write every stack of a capture.

The text of a path has one fragment for each frame. Each distinct frame has one fragment; numpy selects the fragments
for a whole chunk of stacks, and one join copies them. For paths deeper than `_STRIDE` frames, the text of the upper
part is made once and kept, within a budget: the text of an anchor, a caller at most `_STRIDE` frames up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from hiwater.analysis import recursion
from hiwater.analysis.call_tree import CallTree
from hiwater.analysis.sums import depths
from hiwater.capture.paths import Frame, Ints

STACKS_IN_CHUNK = 1024
BYTES_IN_CHUNK = 8 << 20
_STRIDE = 64
_BUDGET_BYTES = 128 << 20


class PathTexts:
    """Texts of paths from root to leaf: `fragment(frame)` for each frame, `separator` between frames."""

    def __init__(self, call_tree: CallTree, fragment: Callable[[Frame], bytes], separator: bytes) -> None:
        self._parent = call_tree.parent
        self._frames = call_tree.frames
        self._fragment = fragment
        self._separator = separator
        # Nodes that others represent have no parent, and are never used.
        self._length = recursion.text_bytes(call_tree)
        self._level = np.where(call_tree.stands, depths(call_tree.parent), 0)
        keys = len(call_tree.frames)
        is_first = call_tree.parent == 0
        # A frame's text without separator where it begins a path; entry 0 is no frame at all.
        self._choice = np.where(self._level > 0, 1 + call_tree.key + np.where(is_first, 0, keys), 0)
        self._pieces: npt.NDArray[Any] = np.full(1 + 2 * keys, None, dtype=object)
        self._pieces[0] = b""
        self._is_made = np.zeros(1 + 2 * keys, bool)
        self._is_made[0] = True
        self._anchors: dict[int, bytes] = {0: b""}
        self._anchors_bytes = 0

    def chunks(self, leaves: Ints) -> Iterator[slice]:
        """Slices that cover these leaves, small enough to keep the texts of one slice in memory."""
        length = np.cumsum(self._length[leaves])
        first = 0
        while first < len(leaves):
            before = int(length[first - 1]) if first else 0
            fitting = int(np.searchsorted(length, before + BYTES_IN_CHUNK, side="right"))
            last = max(first + 1, min(fitting, first + STACKS_IN_CHUNK))
            yield slice(first, last)
            first = last

    def pieces_of(self, leaves: Ints) -> tuple[list[bytes], npt.NDArray[Any]]:
        """For each leaf: the text of its anchor, and a row of pieces that follow it."""
        steps = np.where(self._level[leaves] > 0, (self._level[leaves] - 1) % _STRIDE + 1, 0)
        width = int(steps.max(initial=0))
        choices = np.zeros((len(leaves), width), np.int64)
        node = leaves
        for step in range(width):
            is_below_anchor = step < steps
            choices[:, width - 1 - step] = np.where(is_below_anchor, self._choice[node], 0)
            node = np.where(is_below_anchor, self._parent[node], node)
        # np.unique() would import numpy.ma: 20 ms of CPU time
        for choice in np.flatnonzero(np.bincount(choices[~self._is_made[choices]])).tolist():
            self._piece(choice)
        return [self._anchor(anchor) for anchor in node.tolist()], self._pieces[choices]

    def _anchor(self, node: int) -> bytes:
        known = self._anchors.get(node)
        if known is not None:
            return known
        above, choices = node, []
        while above not in self._anchors:
            choices.append(int(self._choice[above]))
            above = int(self._parent[above])
        text = self._anchors[above] + b"".join([self._piece(choice) for choice in reversed(choices)])
        self._keep(node, text)
        return text

    def _keep(self, node: int, text: bytes) -> None:
        self._anchors_bytes += len(text)
        if self._anchors_bytes > _BUDGET_BYTES:
            self._anchors = {0: b""}
            self._anchors_bytes = len(text)
        self._anchors[node] = text

    def _piece(self, choice: int) -> bytes:
        piece: bytes | None = self._pieces[choice]
        if piece is None:
            keys = len(self._frames)
            text = self._fragment(self._frames[(choice - 1) % keys])
            piece = self._pieces[choice] = text if choice <= keys else self._separator + text
            self._is_made[choice] = True
        return piece


def joined(heads: list[bytes], anchors: list[bytes], pieces: npt.NDArray[Any], tails: list[bytes]) -> bytes:
    """Head, anchor, pieces and tail of every stack, one after the other."""
    rows = np.empty((len(heads), pieces.shape[1] + 3), dtype=object)
    rows[:, 0], rows[:, 1], rows[:, 2:-1], rows[:, -1] = heads, anchors, pieces, tails
    return b"".join(rows.ravel().tolist())


def write_bytes(stream: TextIO, parts: Iterator[bytes]) -> None:
    """Write UTF-8 to the binary stream below a text stream, if there is one: to encode again would cost as much as
    to make the text."""
    raw = getattr(stream, "buffer", None)
    if raw is None:
        stream.writelines(part.decode("utf-8") for part in parts)
        return
    stream.flush()
    for part in parts:
        raw.write(part)
    raw.flush()
