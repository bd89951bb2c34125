"""What the page shows, as data: `page.schema.json` in report/schemas describes it, `web/` reads it.

A page holds all that can be asked of its captures afterwards: the peak, the end and every slice of time, by any grouping.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.analysis.call_tree import IMPORT_SYSTEM
from hiwater.analysis.compact import CompactedCapture, compact
from hiwater.analysis.diff import MatchedComparison
from hiwater.analysis.diff_arrays import Beside, lay_beside
from hiwater.analysis.naming import is_library, label_files, module_of
from hiwater.capture import Capture
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Frame, Ints
from hiwater.report.diff_request import DiffReport, notes, resident_exactness
from hiwater.report.export.json_diff import figure_of
from hiwater.report.export.json_report import summary
from hiwater.report.formatting import printable
from hiwater.report.html.columns import PackedColumns
from hiwater.report.html.source_text import embedded
from hiwater.report.request import Report

SCHEMA = "hiwater.page/3"
_MOST_POINTS = 6000  # of a timeline; further ones give way to the highest of their neighbours
_LONGEST_NAME = 2000


def packed(reports: Sequence[Report], source: str) -> str:
    """The data of a page for these reports, as the text that stands in it. `source` is "all", "own" or "none"."""
    columns = PackedColumns()
    captures = [_capture(report, source, columns) for report in reports]
    return columns.packed({"schema": SCHEMA, "captures": captures})


def packed_diff(report: DiffReport, source: str) -> str:
    """The data of a page that compares: what was compared first stands first."""
    columns = PackedColumns()
    captures = [_compared(report, told, source, columns) for told in report.processes or (report.comparison,)]
    return columns.packed({"schema": SCHEMA, "captures": captures})


def _compared(diff: DiffReport, told: MatchedComparison, source: str, columns: PackedColumns) -> dict[str, Any]:
    """The later capture of a comparison. Stacks are beside one another unless one of the two was watched from outside."""
    before, after = diff.sides(told)
    compared = {
        "before": {
            "name": printable(str(told.before.path), _LONGEST_NAME),
            "title": printable(before.title, _LONGEST_NAME),
            "python": told.before.process.python,
            "pid": told.before.process.pid,
            "mode": told.before.process.mode,
            "sample_bytes": told.before.process.sample_bytes,
            "duration_ns": told.before.process.duration_ns,
            "exactness": before.exactness(told.before.peak),
            "resident_exactness": resident_exactness(told.before),
            "peak_ns": told.before.peak.at_ns,
            "asked_ns": told.before_snapshot.at_ns,
        },
        "after": {"name": printable(str(told.after.path), _LONGEST_NAME)},
        "peak": figure_of(told.peak),
        "resident": figure_of(told.resident),
        "end": figure_of(told.totals["end_bytes"]),
        "notes": [printable(note, _LONGEST_NAME) for note in (diff.notes if told is diff.comparison else notes(told))],
    }
    beside = None if told.allocated.change is None else lay_beside(told)
    return {**_capture(after, source, columns, beside, told.before), "compared": compared}


def _capture(
    report: Report, source: str, columns: PackedColumns, beside: Beside | None = None, before: Capture | None = None
) -> dict[str, Any]:
    """One capture, or the later one of two."""
    capture = report.capture
    captures = [capture] if before is None else [capture, before]
    compacted = beside.compacted if beside else compact(capture)
    files = _Numbered(frame.file for frame in compacted.frames)
    gone = beside.gone_files if beside else frozenset()
    labels = set().union(*(label_files(one.tables) for one in captures))
    cwd, gone_cwd = (one.facts.get("cwd", "") for one in (captures[0], captures[-1]))
    return {
        "title": printable(report.title, _LONGEST_NAME),
        "summary": summary(report, lambda node: {"frame": _frame(capture, node)}),
        "exactness": report.exactness(capture.peak),
        "asked": _asked(report),
        "files": [_file(name, gone_cwd if name in gone else cwd, name in labels) for name in files.texts],
        **_stacks(compacted, files, columns, beside),
        "slices": _slices(capture, columns),
        "timeline": _timeline(capture, columns),
        "markers": [
            {"at_ns": marker.at_ns, "kind": marker.kind, "value": marker.value}
            for marker in (*capture.markers, *capture.device_refusals)
        ],
        "source": embedded(report, source, {name: number for number, name in enumerate(files.texts)}),
    }


def _frame(capture: Capture, node: int) -> dict[str, Any] | None:
    """The innermost frame of a call path that is not the import system's."""
    frames = capture.tables.paths.frames(node)
    own = next((frame for frame in reversed(frames) if not frame.file.startswith(IMPORT_SYSTEM)), None)
    return None if own is None else asdict(own)


def _asked(report: Report) -> dict[str, Any]:
    """What was asked for on the command line: the page opens there."""
    snapshot = report.snapshot
    piece = next(
        (
            number
            for number, piece in enumerate(report.capture.slices)
            if (piece.start_ns, piece.end_ns, piece.peak_ns) == (snapshot.start_ns, snapshot.end_ns, snapshot.at_ns)
        ),
        None,
    )
    return {
        "at": snapshot.name,
        "slice": piece if snapshot.name in ("slice", "oom") else None,
        "kind": report.kind,
        "by": str(report.grouping),
        "inverted": report.inverted,
    }


class _Numbered:
    """Distinct texts and the number of each."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = {}
        self.number = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
        self.texts = list(numbers)


def _file(name: str, cwd: str, is_label: bool) -> dict[str, Any]:
    """`is_label`: the name says what a mapping is, which belongs to the line above it."""
    return {
        "name": name,
        "module": module_of(name, cwd) or "[native]",
        "library": is_label or is_library(name),
        "imports": name.startswith(IMPORT_SYSTEM),
    }


def _stacks(
    compacted: CompactedCapture, files: _Numbered, columns: PackedColumns, beside: Beside | None
) -> dict[str, Any]:
    """Frames, call paths, holders and how those changed from slice to slice."""
    gone = {"gone": columns.add(beside.frame_is_gone)} if beside else {}
    frames: list[Frame] = compacted.frames
    functions = _Numbered(frame.function for frame in frames)
    number = np.arange(len(compacted.parent))
    return {
        "functions": functions.texts,
        "frames": {
            "function": columns.add(functions.number),
            "file": columns.add(files.number),
            "line": columns.add([frame.line for frame in frames]),
            **gone,
        },
        "nodes": {
            "above": columns.add(number - compacted.parent),
            "frame": columns.add(compacted.frame),
        },
        "threads": [{"node": node, "name": name} for node, name in compacted.threads.items()],
        "holders": {
            "node": columns.add(compacted.holder_node),
            "kind": columns.add(compacted.holder_kind),
            "sampled": columns.add(compacted.holder_is_sampled),
            **{name: columns.add(values) for name, values in compacted.columns.items()},
            **{name: columns.add(values) for name, values in (beside.columns if beside else {}).items()},
        },
        "changes": {
            "count": columns.add(_counts(compacted.entry_slice)),
            "holder": columns.add(compacted.entry_holder),
            "bytes": columns.add(compacted.entry_bytes),
            "blocks": columns.add(compacted.entry_blocks),
        },
        "merged": {"stacks": compacted.merged_stacks, "most_bytes": compacted.merged_most_bytes},
    }


def _counts(entry_slice: Ints) -> Ints:
    """How many entries each slice has."""
    return np.bincount(entry_slice).astype(np.int64) if len(entry_slice) else np.zeros(0, np.int64)


def _slices(capture: Capture, columns: PackedColumns) -> dict[str, Any]:
    names = ("start_ns", "end_ns", "peak_ns", "peak_bytes", "unlisted_bytes")
    return {name: columns.add([getattr(piece, name) for piece in capture.slices]) for name in names}


def _timeline(capture: Capture, columns: PackedColumns) -> dict[str, Any]:
    """Curves over time: resident memory, what was allocated of each kind, devices, and the processes that were watched."""
    line = capture.timeline
    reserved = line.kind_bytes["reserved"]
    place = _told(line.resident_bytes, line.allocated_bytes, *(() if capture.device is None else (reserved,)))
    series = []
    if capture.device is None:
        series.append(_curve("resident", "resident", columns, None, line.resident_bytes[place]))
    if not capture.is_timeline:
        series += [
            _curve(kind, "kind", columns, None, line.kind_bytes[kind][place])
            for kind in KINDS
            if (kind in COUNTED_KINDS[:3] and capture.device is None)
            or (line.kind_bytes[kind].any() and (kind != "reserved" or capture.device is None))
        ]
    if capture.device is not None and capture.reserved_peak_bytes is not None:
        series.append(_curve("reserved by the allocator", "reserved", columns, None, reserved[place]))
    for device in capture.devices:
        if len(device.at_ns):
            told = _told(device.peaks_bytes)
            name = printable(f"{device.name} allocated", 60)
            series.append(_curve(name, "device", columns, device.at_ns[told], np.maximum(0, device.peaks_bytes[told])))
    for process in capture.processes[1:]:
        own = _told(process.resident_bytes)
        series.append(
            _curve(
                f"{printable(process.name, 60)} {process.pid}", "process", columns,
                process.at_ns[own], process.resident_bytes[own],
            )
        )  # fmt: skip
    return {
        "at_ns": columns.add(line.at_ns[place]),
        "series": series,
        "points": len(line.at_ns),
        "limits": _limits(capture),
    }


def _limits(capture: Capture) -> list[dict[str, Any]]:
    """The limits that were in force at the last look."""
    found = []
    for name, field in (("limit of the cgroup", "cgroup_limit"), ("limit of address space", "address_space_limit")):
        known = [limit for row in capture.pressure if (limit := getattr(row, field))]
        if known:
            found.append({"name": name, "bytes": known[-1]})
    return found


def _curve(name: str, group: str, columns: PackedColumns, at_ns: Ints | None, values: Ints) -> dict[str, Any]:
    """One curve; `at_ns` is None for those that share the timeline's points."""
    curve: dict[str, Any] = {"name": name, "group": group, "bytes": columns.add(values)}
    return curve if at_ns is None else {**curve, "at_ns": columns.add(at_ns)}


def _told(*curves: Ints) -> npt.NDArray[np.int64]:
    """Which points are told: all, or of each stretch of neighbours those where one of the curves is highest."""
    length = len(curves[0])
    if length <= _MOST_POINTS:
        return np.arange(length)
    stretch = np.arange(length) * (_MOST_POINTS // (len(curves) + 1)) // length
    chosen = [np.array([0, length - 1])]
    for curve in curves:
        order = np.lexsort((-curve, stretch))
        chosen.append(order[np.flatnonzero(np.diff(stretch[order], prepend=-1))])
    return np.unique(np.concatenate(chosen))
