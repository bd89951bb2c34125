"""The figures of every line of every file of a capture: at a moment, at the end, and in total.

The figures of a line include everything that it called. Each byte counts once for a line, however often the line is on
the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree, Grouping, build_call_tree
from hiwater.capture import Snapshot
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Ints, sum_at


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
    names, number = tables.files
    file_of_node = number[nodes["code"].astype(np.int64)]
    line_of_node = nodes["line"].astype(np.int64)
    # Labels, thread roots and native frames without a source line belong to the lines above them.
    named = call_tree.stands & (line_of_node > 0)
    named &= np.array([bool(name) for name in names], bool)[file_of_node] if names else False
    visits = sums.walk(call_tree.parent)
    by_line = _Places(visits, np.where(named, (file_of_node << 32) | line_of_node, -1))
    by_file = _Places(visits, np.where(named, file_of_node, -1))
    lines, files = dict[str, Ints](), dict[str, Ints]()
    for name, values in _columns(snapshot, end, kind, call_tree):  # one after the other: there may be millions of nodes
        below = sums.sum_below(visits, values)
        lines[name] = by_line.totals(below)
        if name == "bytes":
            lines["self_bytes"] = by_line.themselves(values)
        if name in ("bytes", "total_bytes"):
            files[name] = by_file.totals(below)
    found = {
        number: FileUse(names[number], names[number] in tables.own_files, *figures)
        for number, *figures in zip(by_file.keys.tolist(), *(files[name].tolist() for name in files), strict=True)
    }
    for place, *row in zip(by_line.keys.tolist(), *(lines[name].tolist() for name in _COLUMNS), strict=True):
        if any(row):
            found[place >> 32].lines.append(LineUse(place & 0xFFFFFFFF, *row))
    used = (file for file in found.values() if file.lines)
    return sorted(used, key=lambda file: (-file.bytes, -file.total_bytes, file.file))


class _Places:
    """What nodes with the same key, such as the same line, hold together; they have no place where it is -1. Each
    byte counts once, also in recursion."""

    def __init__(self, visits: sums.Walk, key: Ints) -> None:
        self._key = key
        outer = sums.outermost(visits, key)
        self._outer = outer[key[outer] >= 0]
        self.keys, self._row = np.unique(key[self._outer], return_inverse=True)

    def totals(self, below: Ints) -> Ints:
        """For each of `keys`, the sum of its outermost nodes."""
        return sum_at(len(self.keys), self._row, below[self._outer])

    def themselves(self, values: Ints) -> Ints:
        """For each of `keys`, the sum of all its nodes without those below them."""
        nodes = np.flatnonzero((values != 0) & (self._key >= 0))
        return sum_at(len(self.keys), np.searchsorted(self.keys, self._key[nodes]), values[nodes])


def _columns(snapshot: Snapshot, end: Snapshot, kind: str, call_tree: CallTree) -> Iterator[tuple[str, Ints]]:
    """The figures of each node itself, of all counted kinds or of one."""
    tables = snapshot.tables
    accounts, peaks = tables["accounts"], tables["account_peaks"]
    kinds = tables.account_kind
    wanted = np.flatnonzero(is_counted(kinds) if kind == "all" else kinds == KINDS.index(kind))
    place = call_tree.place[tables.account_node[wanted]]
    columns = {
        "bytes": snapshot.bytes, "blocks": snapshot.blocks, "end_bytes": end.bytes, "end_blocks": end.blocks,
        "total_bytes": accounts["total_bytes"], "total_blocks": accounts["total_blocks"],
        "temporaries": peaks["temporaries"][: len(kinds)],
    }  # fmt: skip
    for name, of_accounts in columns.items():
        yield name, sum_at(len(call_tree.parent), place, of_accounts[wanted].astype(np.int64))
