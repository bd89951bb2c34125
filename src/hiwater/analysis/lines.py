"""Every line of every file of a capture: what it held at a moment and at the end, and what it asked for in all.

A line's figures are its own and those of all that it called; each byte is in a line once, however often the line is on the stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree, Grouping, build_call_tree
from hiwater.analysis.naming import is_library
from hiwater.capture import Snapshot
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Ints


@dataclass(frozen=True, slots=True)
class LineUse:
    """One line. `self_bytes` were asked for by itself; the other figures include what it called. `temporaries` are blocks freed
    before their thread's next allocation."""

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
    """One file with the lines that asked for memory, in the order of the source. `bytes` and `total_bytes` have each byte once."""

    file: str
    is_own: bool
    bytes: int
    total_bytes: int
    lines: list[LineUse] = field(default_factory=list)


_COLUMNS = ("bytes", "blocks", "self_bytes", "end_bytes", "end_blocks", "total_bytes", "total_blocks", "temporaries")


def annotate(snapshot: Snapshot, end: Snapshot, kind: str = "all") -> list[FileUse]:
    """All files that asked for memory, those that held most at the moment first, then those that asked for most. `end` is the end of the same
    recording."""
    tables = snapshot.tables
    call_tree = build_call_tree(tables, Grouping.line)
    nodes = tables["nodes"]
    texts = [tables.string(int(number)) for number in tables["codes"]["file"]]
    number_of = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    file_of_node = np.array([number_of[text] for text in texts], np.int64)[nodes["code"].astype(np.int64)]
    line_of_node = nodes["line"].astype(np.int64)
    columns = _columns(snapshot, end, kind, call_tree)
    totals = {
        name: sums.sum_upwards(call_tree.parent, values) for name, values in columns.items() if name != "self_bytes"
    }
    visits = sums.walk(call_tree.parent)
    # Native frames, labels and thread roots are in no file: what they hold belongs to the Python lines above them.
    named = call_tree.stands & (line_of_node > 0)
    named &= np.array([bool(text) for text in number_of], bool)[file_of_node] if number_of else False
    key = np.where(named, (file_of_node << 32) | line_of_node, -1)
    lines = _sums_by_key(key, sums.outermost(visits, key), totals)
    for place, own in zip(key.tolist(), columns["self_bytes"].tolist(), strict=True):
        if own and place >= 0:
            lines[place]["self_bytes"] += own
    file_key = np.where(named, file_of_node, -1)
    files = _sums_by_key(file_key, sums.outermost(visits, file_key), totals)
    return _assemble(list(number_of), files, lines)


def _columns(snapshot: Snapshot, end: Snapshot, kind: str, call_tree: CallTree) -> dict[str, Ints]:
    """For each node, what it asked for itself, of the counted kinds or of one."""
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
    columns = {}
    for name, of_accounts in values.items():
        columns[name] = np.zeros(len(call_tree.parent), np.int64)
        np.add.at(columns[name], place, of_accounts[wanted])
    return columns


def _sums_by_key(key: Ints, outer: Ints, totals: dict[str, Ints]) -> dict[int, dict[str, int]]:
    """For each key, the sums over its outermost nodes; keys without any figure are left out."""
    outer = outer[key[outer] >= 0]
    distinct, back = np.unique(key[outer], return_inverse=True)
    summed = {}
    for name, total in totals.items():
        summed[name] = np.zeros(len(distinct), np.int64)
        np.add.at(summed[name], back, total[outer])
    rows = zip(*(values.tolist() for values in summed.values()), strict=True)
    found = {}
    for place, row in zip(distinct.tolist(), rows, strict=True):
        if any(row):
            found[place] = {"self_bytes": 0, **dict(zip(summed, row, strict=True))}
    return found


def _assemble(names: list[str], files: dict[int, dict[str, int]], lines: dict[int, dict[str, int]]) -> list[FileUse]:
    found = {
        number: FileUse(names[number], not is_library(names[number]), figures["bytes"], figures["total_bytes"])
        for number, figures in files.items()
    }
    for place, figures in sorted(lines.items()):
        found[place >> 32].lines.append(LineUse(place & 0xFFFFFFFF, *(figures[name] for name in _COLUMNS)))
    return sorted(found.values(), key=lambda file: (-file.bytes, -file.total_bytes, file.file))
