"""The figures of every line of every file of a capture: at a moment, at the end, and in total.

The figures of a line include everything that it called. Each byte counts once for a line, however often the line is on
the stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree, Grouping, build_call_tree
from hiwater.capture import Snapshot
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Ints, numbered


@dataclass(frozen=True, slots=True)
class LineUse:
    """One line. `self_bytes` are those of the line itself; the other figures include what it called. `temporaries`
    are blocks that were freed before their thread's next allocation."""

    line: int
    bytes: int
    blocks: int
    self_bytes: int
    end_bytes: int
    end_blocks: int
    total_bytes: int
    total_blocks: int
    temporaries: int


@dataclass(frozen=True, slots=True)
class FileUse:
    """One file with its lines that allocated memory, in the order of the source. `bytes` and `total_bytes` count
    each byte once."""

    file: str
    is_own: bool
    bytes: int
    total_bytes: int
    lines: list[LineUse] = field(default_factory=list)


_COLUMNS = ("bytes", "blocks", "self_bytes", "end_bytes", "end_blocks", "total_bytes", "total_blocks", "temporaries")


def annotate(snapshot: Snapshot, end: Snapshot, kind: str = "all") -> list[FileUse]:
    """All files that allocated memory, by their bytes at the moment and then by their total bytes, highest first.
    `end` is the end of the same recording."""
    tables = snapshot.tables
    call_tree = build_call_tree(tables, Grouping.line)
    nodes = tables["nodes"]
    names, number = numbered(tables.string(text) for text in tables["codes"]["file"].tolist())
    file_of_node = number[nodes["code"].astype(np.int64)]
    line_of_node = nodes["line"].astype(np.int64)
    columns = _columns(snapshot, end, kind, call_tree)
    totals = {
        name: sums.sum_upwards(call_tree.parent, values) for name, values in columns.items() if name != "self_bytes"
    }
    visits = sums.walk(call_tree.parent)
    # Native frames, labels and thread roots have no file: their memory belongs to the Python lines above them.
    named = call_tree.stands & (line_of_node > 0)
    named &= np.array([bool(name) for name in names], bool)[file_of_node] if names else False
    key = np.where(named, (file_of_node << 32) | line_of_node, -1)
    lines = _sums_by_key(key, sums.outermost(visits, key), totals)
    for place, own in zip(key.tolist(), columns["self_bytes"].tolist(), strict=True):
        if own and place >= 0:
            lines[place]["self_bytes"] += own
    file_key = np.where(named, file_of_node, -1)
    files = _sums_by_key(file_key, sums.outermost(visits, file_key), totals)
    return _assemble(names, tables.own_files, files, lines)


def _columns(snapshot: Snapshot, end: Snapshot, kind: str, call_tree: CallTree) -> dict[str, Ints]:
    """The figures of each node itself, of all counted kinds or of one."""
    tables = snapshot.tables
    accounts, peaks = tables["accounts"], tables["account_peaks"]
    kinds = tables.account_kind
    wanted = np.flatnonzero(is_counted(kinds) if kind == "all" else kinds == KINDS.index(kind))
    place = call_tree.place[tables.account_node[wanted]]
    values = {
        "bytes": snapshot.bytes,
        "blocks": snapshot.blocks,
        "self_bytes": snapshot.bytes,
        "end_bytes": end.bytes,
        "end_blocks": end.blocks,
        "total_bytes": accounts["total_bytes"].astype(np.int64),
        "total_blocks": accounts["total_blocks"].astype(np.int64),
        "temporaries": peaks["temporaries"][: len(kinds)].astype(np.int64),
    }
    length = len(call_tree.parent)
    return {name: sums.sum_at(length, place, of_accounts[wanted]) for name, of_accounts in values.items()}


def _sums_by_key(key: Ints, outer: Ints, totals: dict[str, Ints]) -> dict[int, dict[str, int]]:
    """For each key, the sums over its outermost nodes. Keys without figures are left out."""
    outer = outer[key[outer] >= 0]
    distinct, back = np.unique(key[outer], return_inverse=True)
    summed = {name: sums.sum_at(len(distinct), back, total[outer]) for name, total in totals.items()}
    rows = zip(*(values.tolist() for values in summed.values()), strict=True)
    found = {}
    for place, row in zip(distinct.tolist(), rows, strict=True):
        if any(row):
            found[place] = {"self_bytes": 0, **dict(zip(summed, row, strict=True))}
    return found


def _assemble(
    names: list[str], own: set[str], files: dict[int, dict[str, int]], lines: dict[int, dict[str, int]]
) -> list[FileUse]:
    found = {
        number: FileUse(names[number], names[number] in own, figures["bytes"], figures["total_bytes"])
        for number, figures in files.items()
    }
    for place, figures in sorted(lines.items()):
        found[place >> 32].lines.append(LineUse(place & 0xFFFFFFFF, *(figures[name] for name in _COLUMNS)))
    return sorted(found.values(), key=lambda file: (-file.bytes, -file.total_bytes, file.file))
