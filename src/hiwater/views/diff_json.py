"""A comparison for machines, described by `diff.schema.json` beside this file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, TextIO

from hiwater.analysis.diff import Change, Figure
from hiwater.capture import Capture, Frame, Moment
from hiwater.views.diff_report import DiffReport, verdict_words

SCHEMA = "hiwater.diff/1"


def write(report: DiffReport, stream: TextIO) -> None:
    """One object; lines and rows are written one by one, for there may be very many rows."""
    told = report.comparison
    head = {
        "schema": SCHEMA,
        "before": _side(told.before, told.before_moment),
        "after": _side(told.after, told.after_moment),
        "shown": {"at": told.after_moment.name, "kind": told.kind, "by": str(told.by)},
        "peak": {
            "allocated_bytes": figure_of(told.peak),
            "resident_bytes": figure_of(told.resident),
            "blocks": figure_of(told.totals["peak_blocks"]),
        },
        "held": {
            "bytes": figure_of(told.held),
            **{f"{kind}_bytes": figure_of(told.kinds[kind]) for kind in told.kinds},
        },
        "end": {"allocated_bytes": figure_of(told.totals["end_bytes"])},
        "totals": {name: figure_of(told.totals[name]) for name in ("allocations", "allocated_bytes", "temporaries")},
        "duration_ns": figure_of(told.totals["duration_ns"]),
        "processes": [
            {
                "before": _side(one.before, one.before_moment),
                "after": _side(one.after, one.after_moment),
                "bytes": figure_of(one.held),
                "resident_bytes": figure_of(one.resident),
            }
            for one in report.processes
        ],
        "notes": report.notes,
        "limit": None if report.verdict is None else _verdict(report),
    }
    stream.write(json.dumps(head, indent=1)[:-2])  # without the newline and brace that close it: two members follow
    for name, changes in (("lines", told.lines), ("rows", told.rows)):
        stream.write(f',\n "{name}": [')
        _write_changes(changes, stream)
        stream.write("]")
    stream.write("\n}\n")


def _write_changes(changes: Iterable[Change], stream: TextIO) -> None:
    for number, change in enumerate(changes):
        stream.write(",\n" if number else "\n")
        stream.write(_change(change))


def _side(capture: Capture, moment: Moment) -> dict[str, Any]:
    process = capture.process
    return {
        "path": str(capture.path),
        "pid": process.pid,
        "argv": list(process.argv),
        "python": process.python,
        "mode": process.mode,
        "sample_bytes": process.sample_bytes,
        "ended": process.ended,
        "at_ns": moment.at_ns,
        "resident_exact": capture.resident.exact,
        "resident_error_bytes": capture.resident.error_bytes,
    }


def figure_of(figure: Figure) -> dict[str, Any]:
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


def _change(change: Change) -> str:
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
    before, after = (", ".join(map(_frame, frames)) for frames in (change.before, change.after))
    return f'{json.dumps(said)[:-1]}, "before": [{before}], "after": [{after}]}}'


@cache
def _frame(frame: Frame) -> str:
    """Made once: very many rows have few different frames."""
    return json.dumps({"function": frame.function, "file": frame.file, "line": frame.line})
