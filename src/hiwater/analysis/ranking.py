"""Who held most: by stack, function, line, file, module or thread; and by the line of the user's own code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree, Grouping, build_call_tree, follow
from hiwater.analysis.naming import is_library
from hiwater.capture.format import CODE_LABEL
from hiwater.capture.paths import Frame
from hiwater.capture.snapshot import Holdings
from hiwater.capture.tables import Tables


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that held memory. `self_bytes` were asked for by itself (rows' self_bytes sum to all that is shown),
    `total_bytes` also by what it called, each byte once however often the thing is on the stack."""

    frame: Frame
    self_bytes: int
    self_blocks: int
    total_bytes: int
    self_error_bytes: int = 0
    """Standard errors, at most; 0 where every block was recorded."""
    total_error_bytes: int = 0


def rank(call_tree: CallTree, holdings: Holdings) -> list[Row]:
    """Rows for every key that held something, most own bytes first, then most in total, then by name."""
    leaf = call_tree.place[holdings.node]
    length = len(call_tree.parent)
    own, blocks, sampled = (
        sums.sum_at(length, leaf, values) for values in (holdings.bytes, holdings.blocks, holdings.sampled)
    )
    total = sums.sum_upwards(call_tree.parent, own)
    # Node 0 stands for no frame at all: what is held outside every frame gets a row of its own, under the last key.
    nothing = len(call_tree.frames)
    key = call_tree.key.copy()
    key[:1] = nothing
    stands = call_tree.stands
    key_of_stand = np.where(stands, key, nothing + 1)
    outer = sums.outermost(sums.walk(call_tree.parent), key_of_stand)
    outer = outer[stands[outer]]
    own_of, blocks_of, sampled_of = (
        sums.sum_at(nothing + 2, key, np.where(stands, values, 0)) for values in (own, blocks, sampled)
    )
    total_of = sums.sum_at(nothing + 2, key[outer], total[outer])
    total_of[nothing] = own[0] if length else 0
    below_of = sampled_of  # all zeros where nothing was sampled
    if holdings.sample_bytes:
        below_of = sums.sum_at(nothing + 2, key[outer], sums.sum_upwards(call_tree.parent, sampled)[outer])
    shown = np.flatnonzero((own_of != 0) | (blocks_of != 0) | (total_of != 0))
    rows = [
        Row(
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


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source and what it and everything it called held: every byte belongs to one line."""

    frame: Frame
    bytes: int
    blocks: int
    standard_error_bytes: int = 0


def own_lines(tables: Tables, holdings: Holdings, at_most: int) -> list[Line]:
    """Each stack given to its innermost line of the user's own code (to its innermost frame, where it has none), most first."""
    nodes, codes = tables["nodes"], tables["codes"]
    is_own_code = np.array([not is_library(tables.string(file)) for file in codes["file"].tolist()], bool)
    is_own_code &= codes["kind"] != CODE_LABEL  # says what a mapping is, and belongs to the line above it
    number = np.arange(len(nodes))
    nearest = follow(np.where(is_own_code[nodes["code"]], number, nodes["parent"].astype(np.int64)))
    at = nearest[holdings.node]
    at = np.where(at == 0, holdings.node, at)
    held, back = np.unique(at, return_inverse=True)
    code, line = nodes["code"][held].astype(np.int64), nodes["line"][held].astype(np.int64)
    place, back_to_place = np.unique((code << 32) | line, return_inverse=True)
    length = len(place)
    sum_bytes = sums.sum_at(length, back_to_place[back], holdings.bytes)
    sum_blocks = sums.sum_at(length, back_to_place[back], holdings.blocks)
    sum_sampled = sums.sum_at(length, back_to_place[back], holdings.sampled)
    lines: dict[Frame, tuple[int, int, int]] = {}
    # One line may come from several code objects (a comprehension, a module compiled twice): join a few more than shown.
    for index in np.argsort(-sum_bytes, kind="stable")[: 8 * at_most].tolist():
        record = codes[int(place[index]) >> 32]
        frame = Frame(
            tables.string(int(record["function"])), tables.string(int(record["file"])), int(place[index]) & 0xFFFFFFFF
        )
        held_bytes, held_blocks, sampled = lines.get(frame, (0, 0, 0))
        lines[frame] = (
            held_bytes + int(sum_bytes[index]), held_blocks + int(sum_blocks[index]), sampled + int(sum_sampled[index])
        )  # fmt: skip
    ordered = sorted(lines.items(), key=lambda item: -item[1][0])[:at_most]
    return [Line(frame, count, blocks, holdings.standard_error(sampled)) for frame, (count, blocks, sampled) in ordered]


def by(tables: Tables, holdings: Holdings, grouping: Grouping) -> list[Row]:
    """`rank` at this fineness."""
    return rank(build_call_tree(tables, grouping), holdings)
