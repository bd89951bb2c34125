"""A comparison for machines, described by `diff.schema.json` in report/schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import numpy as np

from hiwater.analysis.diff import StackChanges
from hiwater.capture import Capture, Frame, Snapshot
from hiwater.capture.comparison import Change, Changes, ComparedFigure
from hiwater.capture.paths import Ints
from hiwater.report.diff_request import DiffReport, headline_data, verdict_words
from hiwater.report.stack_tables import StackTables, node_text

SCHEMA = "hiwater.diff/3"


def write(report: DiffReport, stream: TextIO) -> None:
    """One object; lines and rows are written one by one, for there may be very many rows."""
    comparison = report.comparison
    head = {
        "schema": SCHEMA,
        "headline": headline_data(comparison),
        "before": _side(comparison.before, comparison.before_snapshot),
        "after": _side(comparison.after, comparison.after_snapshot),
        "shown": {"at": comparison.after_snapshot.name, "kind": comparison.kind, "by": str(comparison.by)},
        "peak": {
            "allocated_bytes": figure_of(comparison.peak),
            "resident_bytes": figure_of(comparison.resident),
            "blocks": figure_of(comparison.totals["peak_blocks"]),
        },
        "allocated": {
            "bytes": figure_of(comparison.allocated),
            **{f"{kind}_bytes": figure_of(comparison.kinds[kind]) for kind in comparison.kinds},
        },
        "end": {"allocated_bytes": figure_of(comparison.totals["end_bytes"])},
        "totals": {
            name: figure_of(comparison.totals[name]) for name in ("allocations", "allocated_bytes", "temporaries")
        },
        "duration_ns": figure_of(comparison.totals["duration_ns"]),
        "processes": [
            {
                "before": _side(one.before, one.before_snapshot),
                "after": _side(one.after, one.after_snapshot),
                "bytes": figure_of(one.allocated),
                "resident_bytes": figure_of(one.resident),
            }
            for one in report.processes
        ],
        "notes": report.notes,
        "limit": None if report.verdict is None else _verdict(report),
    }
    stream.write(json.dumps(head, indent=1)[:-2])  # without the newline and brace that close it: more members follow
    tables = StackTables()
    members = [
        (name, changes, _nodes(changes, tables))
        for name, changes in (("lines", comparison.lines), ("rows", comparison.rows))
    ]
    stream.write(",\n ")
    tables.write(stream)
    for name, changes, nodes in members:
        stream.write(f',\n "{name}": [')
        stream.writelines(
            (",\n" if number else "\n") + _change(change, node)
            for number, (change, node) in enumerate(zip(_figures(changes), nodes, strict=True))
        )
        stream.write("]")
    stream.write("\n}\n")


def _figures(changes: Changes) -> Iterable[Change]:
    """The changes; those of stacks without their frames, which the tables have."""
    if isinstance(changes, StackChanges):
        return map(changes.figures, range(len(changes)))
    return changes


def _nodes(changes: Changes, tables: StackTables) -> Iterator[list[int]]:
    """For each change its place in the tables before and after, -1 where it held nothing or has no frame."""
    if isinstance(changes, StackChanges):
        columns = [_placed(changes, side, tables).tolist() for side in (0, 1)]
        return map(list, zip(*columns, strict=True))
    return iter([_only(change.before, tables) + _only(change.after, tables) for change in changes])


def _placed(changes: StackChanges, side: int, tables: StackTables) -> Ints:
    node = changes.nodes[:, side]
    return np.where(node >= 0, tables.add(changes.call_trees[side], node[node >= 0])[node], -1)


def _only(frames: tuple[Frame, ...], tables: StackTables) -> list[int]:
    """The place of a row's one frame."""
    return tables.add_frames(frames) or [-1]


def _side(capture: Capture, snapshot: Snapshot) -> dict[str, Any]:
    process = capture.process
    return {
        "path": str(capture.path),
        "pid": process.pid,
        "argv": list(process.argv),
        "python": process.python,
        "mode": process.mode,
        "sample_bytes": process.sample_bytes,
        "ended": process.ended,
        "at_ns": snapshot.at_ns,
        "resident_exact": capture.resident.exact,
        "resident_error_bytes": capture.resident.error_bytes,
    }


def figure_of(figure: ComparedFigure) -> dict[str, Any]:
    """One quantity before and after, as plain data."""
    return {
        "before": figure.before,
        "after": figure.after,
        "change": figure.change,
        "percent": figure.percent,
        "standard_error": figure.standard_error_bytes,
        "within_error": figure.is_within_error,
    }


def _verdict(report: DiffReport) -> dict[str, Any]:
    verdict = report.verdict
    assert verdict is not None, "the caller looked"
    return {
        "kept": verdict.kept,
        "quantity": verdict.quantity,
        "bytes": verdict.limit.bytes,
        "percent": verdict.limit.percent,
        "words": verdict_words(verdict),
    }


def _change(change: Change, node: list[int]) -> str:
    said = {
        "state": change.state,
        "change_bytes": change.bytes,
        "before_bytes": change.before_bytes,
        "after_bytes": change.after_bytes,
        "before_blocks": change.before_blocks,
        "after_blocks": change.after_blocks,
        "before_total_bytes": change.before_total_bytes,
        "after_total_bytes": change.after_total_bytes,
        "standard_error_bytes": change.standard_error_bytes,
        "kind": change.kind or None,
    }
    return f'{json.dumps(said)[:-1]}, "before_node": {node_text(node[0])}, "after_node": {node_text(node[1])}}}'
