"""Cells of a notebook in a capture: what the code in them is called, its text, and which frames are the notebook's own.

A cell is in no file, so its text comes with the capture, as a fact: the key is "cell " and the name its code object
gives for a file; the value is what readers call it, a line's end, and the text. The fact "recorded cell" has that name
of the code that was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.capture.references import Records

_KEY = "cell "  # as in hiwater/recording/cells.py, which writes them
RECORDED = "recorded cell"


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """`name` is what readers see as the file: "cell [3]"."""

    name: str
    text: str


def is_cell(key: str) -> bool:
    """Whether the fact of this key is a cell."""
    return key.startswith(_KEY)


def read(facts: Iterable[tuple[str, str]]) -> dict[str, NotebookCell]:
    """The cells by the file names of their code."""
    found = {}
    for key, value in facts:
        if is_cell(key):
            name, _, text = value.partition("\n")
            found[key[len(_KEY) :]] = NotebookCell(name, text)
    return found


def without_kernel(nodes: Records, is_cell: npt.NDArray[np.bool_], is_thread_root: npt.NDArray[np.bool_]) -> Records:
    """The nodes, with the recorded cell's outermost frames where the thread begins: below them is what runs
    notebooks, some thirty frames that are the same in every stack. `is_cell` says for each code whether it is of the
    recorded cell."""
    parent = nodes["parent"].astype(np.int64)
    parent[:1] = 0
    is_cells = is_cell[nodes["code"].astype(np.int64)]
    is_cells[:1] = False
    inside, first = _below(parent, is_cells)
    outermost = is_cells & ~inside[parent]
    changed = nodes.copy()
    changed["parent"][outermost] = np.where(is_thread_root[first], first, 0)[outermost]
    return changed


def _below(parent: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], Any]:
    """For each node, whether it or one above it is chosen, and the first node of its path. Doubling: log2(depth)
    passes."""
    inside, above = chosen.copy(), parent
    first = np.where(parent == 0, np.arange(len(parent)), parent)
    while above.any():
        inside |= inside[above]
        above = above[above]
        first = first[first]
    return inside, first
