"""What the page shows, as data: `page.schema.json` beside this file describes it, `web/` reads it.

A page holds all that can be asked of its captures afterwards: the peak, the end and every slice of time, by any grouping.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.analysis.condense import Condensed, condense
from hiwater.analysis.forest import IMPORT_SYSTEM
from hiwater.analysis.naming import is_library, module_of
from hiwater.capture import Capture
from hiwater.capture.layout import COUNTED_KINDS, KINDS
from hiwater.capture.moment import Frame, Ints
from hiwater.views.html_columns import Columns
from hiwater.views.html_source import embedded
from hiwater.views.json_view import summary
from hiwater.views.report import Report
from hiwater.views.words import printable

SCHEMA = "hiwater.page/1"
_MOST_POINTS = 6000  # of a timeline; further ones give way to the highest of their neighbours
_LONGEST_NAME = 2000


def packed(reports: Sequence[Report], source: str) -> str:
    """The data of a page for these reports, as the text that stands in it. `source` is "all", "own" or "none"."""
    columns = Columns()
    captures = [_capture(report, source, columns) for report in reports]
    return columns.packed({"schema": SCHEMA, "captures": captures})


def _capture(report: Report, source: str, columns: Columns) -> dict[str, Any]:
    capture = report.capture
    condensed = condense(capture)
    files = _Numbered(frame.file for frame in condensed.frames)
    return {
        "title": printable(report.title, _LONGEST_NAME),
        "summary": summary(report),
        "exactness": report.exactness(capture.peak),
        "asked": _asked(report),
        "files": [_file(name, capture) for name in files.texts],
        **_stacks(condensed, files, columns),
        "slices": _slices(capture, columns),
        "timeline": _timeline(capture, columns),
        "marks": [{"at_ns": mark.at_ns, "kind": mark.kind, "value": mark.value} for mark in capture.marks],
        "source": embedded(report, source, {name: number for number, name in enumerate(files.texts)}),
    }


def _asked(report: Report) -> dict[str, Any]:
    """What was asked for on the command line: the page opens there."""
    moment = report.moment
    piece = next(
        (
            number
            for number, piece in enumerate(report.capture.slices)
            if (piece.start_ns, piece.end_ns, piece.mark_ns) == (moment.start_ns, moment.end_ns, moment.at_ns)
        ),
        None,
    )
    return {
        "at": moment.name,
        "slice": piece if moment.name in ("slice", "oom") else None,
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


def _file(name: str, capture: Capture) -> dict[str, Any]:
    return {
        "name": name,
        "module": module_of(name, capture.facts.get("cwd", "")) or "[native]",
        "library": is_library(name),
        "imports": name.startswith(IMPORT_SYSTEM),
    }


def _stacks(condensed: Condensed, files: _Numbered, columns: Columns) -> dict[str, Any]:
    """Frames, call paths, holders and how those changed from slice to slice."""
    frames: list[Frame] = condensed.frames
    functions = _Numbered(frame.function for frame in frames)
    number = np.arange(len(condensed.parent))
    return {
        "functions": functions.texts,
        "frames": {
            "function": columns.add(functions.number),
            "file": columns.add(files.number),
            "line": columns.add([frame.line for frame in frames]),
        },
        "nodes": {
            "above": columns.add(number - condensed.parent),
            "frame": columns.add(condensed.frame),
        },
        "threads": [{"node": node, "name": name} for node, name in condensed.threads.items()],
        "holders": {
            "node": columns.add(condensed.holder_node),
            "kind": columns.add(condensed.holder_kind),
            "drawn": columns.add(condensed.holder_is_drawn),
            **{name: columns.add(values) for name, values in condensed.columns.items()},
        },
        "changes": {
            "count": columns.add(_counts(condensed.entry_slice)),
            "holder": columns.add(condensed.entry_holder),
            "bytes": columns.add(condensed.entry_bytes),
            "blocks": columns.add(condensed.entry_blocks),
        },
        "folded": {"stacks": condensed.folded_stacks, "most_bytes": condensed.folded_most_bytes},
    }


def _counts(entry_slice: Ints) -> Ints:
    """How many entries each slice has."""
    return np.bincount(entry_slice).astype(np.int64) if len(entry_slice) else np.zeros(0, np.int64)


def _slices(capture: Capture, columns: Columns) -> dict[str, Any]:
    names = ("start_ns", "end_ns", "mark_ns", "mark_bytes", "unlisted_bytes")
    return {name: columns.add([getattr(piece, name) for piece in capture.slices]) for name in names}


def _timeline(capture: Capture, columns: Columns) -> dict[str, Any]:
    """Curves over time: resident memory, what was allocated of each kind, and the processes that were watched."""
    line = capture.timeline
    place = _told(line.resident_bytes, line.allocated_bytes)
    series = [_curve("resident", "resident", columns, None, line.resident_bytes[place])]
    if not capture.is_timeline:
        series += [
            _curve(kind, "kind", columns, None, line.kind_bytes[kind][place])
            for kind in KINDS
            if kind in COUNTED_KINDS[:3] or line.kind_bytes[kind].any()
        ]
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


def _curve(name: str, group: str, columns: Columns, at_ns: Ints | None, values: Ints) -> dict[str, Any]:
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
