"""What holds most: by stack, function, line, file, module, thread or task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree, Grouping, build_call_tree
from hiwater.capture.paths import Frame, sum_at
from hiwater.capture.snapshot import Holdings
from hiwater.capture.tables import Tables


@dataclass(frozen=True, slots=True)
class RankedRow:
    """One row of a ranking. `self_bytes` are its own (those of all rows sum to the whole), `total_bytes` include
    what it called. Each byte counts once, however often the row's frame is on the stack."""

    frame: Frame
    self_bytes: int
    self_blocks: int
    total_bytes: int
    self_error_bytes: int = 0
    """Standard errors, at most; 0 where every block was recorded."""
    total_error_bytes: int = 0


def rank(call_tree: CallTree, holdings: Holdings) -> list[RankedRow]:
    """Rows for all keys with memory, by self bytes, then by total bytes, highest first, then by name."""
    leaf = call_tree.place[holdings.node]
    length = len(call_tree.parent)
    own, blocks, sampled = (
        sum_at(length, leaf, values) for values in (holdings.bytes, holdings.blocks, holdings.sampled)
    )
    visits = sums.walk(call_tree.parent)
    total = sums.sum_below(visits, own)
    # Node 0 has no frame: memory outside every frame gets a row of its own, under the last key.
    nothing = len(call_tree.frames)
    key = call_tree.key.copy()
    key[:1] = nothing
    stands = call_tree.stands
    key_of_stand = np.where(stands, key, nothing + 1)
    outer = sums.outermost(visits, key_of_stand)
    outer = outer[stands[outer]]
    own_of, blocks_of, sampled_of = (
        sum_at(nothing + 2, key, np.where(stands, values, 0)) for values in (own, blocks, sampled)
    )
    total_of = sum_at(nothing + 2, key[outer], total[outer])
    total_of[nothing] = own[0] if length else 0
    below_of = sampled_of  # all zeros where nothing was sampled
    if holdings.sample_bytes:
        below_of = sum_at(nothing + 2, key[outer], sums.sum_below(visits, sampled)[outer])
    shown = np.flatnonzero((own_of != 0) | (blocks_of != 0) | (total_of != 0))
    rows = [
        RankedRow(
            call_tree.frames[key] if key < nothing else NO_FRAME,
            int(own_of[key]),
            int(blocks_of[key]),
            int(total_of[key]),
            holdings.standard_error(int(sampled_of[key])),
            holdings.standard_error(int(below_of[key])),
        )
        for key in shown.tolist()
    ]
    return sorted(
        rows, key=lambda row: (-row.self_bytes, -row.total_bytes, row.frame.function, row.frame.file, row.frame.line)
    )


NO_FRAME = Frame("[no Python frame]", "", 0)


def by(tables: Tables, holdings: Holdings, grouping: Grouping) -> list[RankedRow]:
    return rank(build_call_tree(tables, grouping), holdings)
