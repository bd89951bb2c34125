"""The data of the page: a `Page` of `page_document.py`, which `web/` reads.

The page has the peak, the end and every slice of its captures, and can show them in any grouping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from hiwater._os.ownership import IMPORT_SYSTEM
from hiwater.analysis.ages import PARTS, quarters, snapshots, survivors
from hiwater.analysis.compact import CompactedCapture, Limits, compact
from hiwater.analysis.diff import MatchedComparison
from hiwater.analysis.diff_arrays import CompactedDiff, compact_diff
from hiwater.analysis.holders import find_holders
from hiwater.analysis.naming import module_of
from hiwater.analysis.user_lines import row_key, rows_of_paths
from hiwater.capture import Capture
from hiwater.capture.holders import last_search
from hiwater.capture.markers import REFUSED, Marker
from hiwater.capture.paths import Frame, Ints, numbered, sum_at
from hiwater.report.diff_request import DiffReport, headline_data, notes, resident_exactness
from hiwater.report.document import FrameData, data_of, frame_data
from hiwater.report.export.json_diff import figure_of
from hiwater.report.export.json_holders import group_data, type_data
from hiwater.report.export.json_report import summary
from hiwater.report.formatting import printable
from hiwater.report.html import page_document as document
from hiwater.report.html import run_data
from hiwater.report.html.columns import PackedColumns
from hiwater.report.html.source_text import embedded
from hiwater.report.html.timeline_data import timeline
from hiwater.report.request import Report

_LONGEST_NAME = 2000
_MOST_MARKERS = 10_000
_MOST_HELD = 200  # groups of objects, and types of them
_MOST_DESCRIBED = 100  # lines whose memory has types and a holder


def packed(reports: Sequence[Report], source: str) -> str:
    """The data of a page for these reports, as text. `source` is "all", "own" or "none"."""
    columns = PackedColumns()

    def describe(report: Report, limits: Limits | None = None) -> document.CaptureData:
        return _capture(report, source, columns, limits=limits)

    run = reports[0].run
    is_run = (run is not None and run.is_of_several) and not any(report.capture.device for report in reports)
    page: document.PageData
    if is_run:
        page = run_data.described(reports, columns, describe)
    else:
        page = {"schema": "hiwater.page/3", "captures": list(map(describe, reports))}
    return columns.packed(page)


def packed_diff(report: DiffReport, source: str) -> str:
    """The data of a page of comparisons, in their order."""
    columns = PackedColumns()
    captures = [
        _compared(report, comparison, source, columns) for comparison in report.processes or (report.comparison,)
    ]
    page: document.PageData = {"schema": "hiwater.page/3", "captures": captures}
    return columns.packed(page)


def _compared(
    diff: DiffReport, comparison: MatchedComparison, source: str, columns: PackedColumns
) -> document.CaptureData:
    """The later capture of a comparison. It has the stacks of both, unless one of them was only watched from
    outside."""
    (before, after), earlier = diff.sides(comparison), comparison.before
    compared: document.ComparisonData = {
        "before": data_of(
            document.EarlierData,
            earlier.process,
            name=printable(str(earlier.path), _LONGEST_NAME),
            title=printable(before.title, _LONGEST_NAME),
            exactness=before.exactness(earlier.peak),
            resident_exactness=resident_exactness(earlier),
            peak_ns=earlier.peak.at_ns,
            asked_ns=comparison.before_snapshot.at_ns,
        ),
        "after": {"name": printable(str(comparison.after.path), _LONGEST_NAME)},
        "headline": headline_data(comparison),
        "peak": figure_of(comparison.peak),
        "resident": figure_of(comparison.resident),
        "end": figure_of(comparison.totals["end_bytes"]),
        "notes": [
            printable(note, _LONGEST_NAME)
            for note in (diff.notes if comparison is diff.comparison else notes(comparison))
        ],
    }
    arrays = None if comparison.allocated.change is None else compact_diff(comparison)
    said = _capture(after, source, columns, arrays, comparison.before)
    said["compared"] = compared
    return said


def _capture(
    report: Report,
    source: str,
    columns: PackedColumns,
    arrays: CompactedDiff | None = None,
    before: Capture | None = None,
    limits: Limits | None = None,
) -> document.CaptureData:
    """One capture, or the later one of two."""
    capture = report.capture
    captures = [capture] if before is None else [capture, before]
    compacted = arrays.compacted if arrays else compact(capture, limits)
    libraries = {place: library for one in captures for place, library in one.tables.library_of_native.items()}
    files, file_number = numbered([*(frame.file for frame in compacted.frames), *libraries.values()])
    file_number = file_number[: len(compacted.frames)]
    origins = _origins(compacted.frames, libraries, captures, files) if libraries else None
    gone = arrays.gone_files if arrays else frozenset()
    own_files = set().union(*(one.tables.own_files for one in captures))
    cwd, gone_cwd = (one.facts.get("cwd", "") for one in (captures[0], captures[-1]))
    return {
        "title": printable(report.title, _LONGEST_NAME),
        "summary": summary(report, lambda node: {"frame": _frame(capture, node)}),
        "exactness": report.exactness(capture.peak),
        "resident_exactness": resident_exactness(capture),
        "asked": _asked(report),
        "files": [_file(name, gone_cwd if name in gone else cwd, name in own_files) for name in files],
        **_stacks(compacted, file_number, origins, columns, arrays),
        **_ages(capture, compacted, columns),
        **_user_lines(capture, compacted, columns, arrays),
        "slices": _slices(capture, columns),
        "timeline": timeline(capture, columns),
        "markers": [
            {
                "at_ns": marker.at_ns,
                "kind": f"“{printable(marker.name, 60)}”" if marker.name else marker.kind,
                "value": marker.value,
            }
            for marker in _shown([*capture.markers, *capture.device_refusals])
        ],
        "source": embedded(report, source, {name: number for number, name in enumerate(files)}),
        **_object_holders(capture, arrays),
    }


def _shown(markers: list[Marker]) -> list[Marker]:
    """The markers of a page: of very many an even selection, of refusals and of others."""
    if len(markers) <= _MOST_MARKERS:
        return markers
    refused, others = ([one for one in markers if (one.kind == REFUSED) is wanted] for wanted in (True, False))
    kept = (*refused[:: len(refused) // _MOST_MARKERS + 1], *others[:: len(others) // _MOST_MARKERS + 1])
    return sorted(kept, key=lambda one: one.at_ns)


def _object_holders(capture: Capture, arrays: CompactedDiff | None) -> document.CaptureParts:
    """The last search for what holds objects, if there is one."""
    search = None if arrays else last_search(capture.tables)
    if search is None:
        return {}
    found = find_holders(capture.tables, number=search.number, limit=_MOST_HELD)
    return {
        "object_holders": {
            "search": search.number,
            "name": search.name,
            "at_ns": search.at_ns,
            "pause_ns": search.pause_ns,
            "objects": found.objects,
            "bytes": found.bytes,
            "hiwater_bytes": found.own_bytes,
            "is_sampled": found.is_sampled,
            "groups": list(map(group_data, found.groups)),
            "groups_left_out": found.left_out,
            "types": list(map(type_data, found.types[:_MOST_HELD])),
        }
    }


def _frame(capture: Capture, node: int) -> FrameData | None:
    """The innermost frame of a call path outside the import system."""
    frames = capture.tables.paths.frames(node)
    own = next((frame for frame in reversed(frames) if not frame.file.startswith(IMPORT_SYSTEM)), None)
    return None if own is None else frame_data(own)


def _asked(report: Report) -> document.AskedData:
    """The moment, kind and grouping of the command line, with which the page opens."""
    snapshot = report.snapshot
    meant = (snapshot.start_ns, snapshot.end_ns, snapshot.at_ns)
    times = [(piece.start_ns, piece.end_ns, piece.peak_ns) for piece in report.capture.slices]
    return {
        "at": snapshot.name,
        "slice": times.index(meant) if snapshot.name in ("slice", "oom") and meant in times else None,
        "kind": report.kind,
        "by": str(report.grouping),
        "inverted": report.inverted,
        "frames": report.frames,
        "kept": report.kept,
    }


def _file(name: str, cwd: str, is_own: bool) -> document.FileData:
    return {
        "name": name,
        "module": module_of(name, cwd) or "[native]",
        "library": not is_own,
        "imports": name.startswith(IMPORT_SYSTEM),
    }


def _origins(
    frames: Sequence[Frame], libraries: Mapping[tuple[str, str], str], captures: Sequence[Capture], files: Sequence[str]
) -> list[int]:
    """For each frame what its code is, as `page_document.OriginColumn` has it."""
    number = {file: index for index, file in enumerate(files)}
    is_code = {file for capture in captures for file in capture.tables.python_files}
    return [
        number[library] + 2 if library is not None else int(frame.file in is_code)
        for frame in frames
        for library in (libraries.get((frame.function, frame.file)),)
    ]


def _stacks(
    compacted: CompactedCapture,
    file_number: Ints,
    origins: list[int] | None,
    columns: PackedColumns,
    arrays: CompactedDiff | None,
) -> document.StackColumns:
    """Frames, call paths, holders, and their changes from slice to slice."""
    gone: document.GoneColumn = {"gone": columns.add(arrays.frame_is_gone)} if arrays else {}
    origin: document.OriginColumn = {"origin": columns.add(origins)} if origins is not None else {}
    frames: list[Frame] = compacted.frames
    functions, function_number = numbered(frame.function for frame in [*frames, *compacted.functions])
    number = np.arange(len(compacted.parent))
    return {
        "functions": functions,
        "frames": {
            "function": columns.add(function_number[: len(frames)]),
            "file": columns.add(file_number),
            "line": columns.add([frame.line for frame in frames]),
            "part_of": columns.add(function_number[len(frames) :]),
            "first_line": columns.add([function.line for function in compacted.functions]),
            **gone,
            **origin,
        },
        "nodes": {"above": columns.add(number - compacted.parent), "frame": columns.add(compacted.frame)},
        "threads": [{"node": node, "name": name} for node, name in compacted.threads.items()],
        "holders": _holders(compacted, columns, arrays),
        "changes": {
            "count": columns.add(np.bincount(compacted.entry_slice)),
            "holder": columns.add(compacted.entry_holder),
            "bytes": columns.add(compacted.entry_bytes),
            "blocks": columns.add(compacted.entry_blocks),
        },
        "merged": {"stacks": compacted.merged_stacks, "most_bytes": compacted.merged_most_bytes},
    }


def _holders(
    compacted: CompactedCapture, columns: PackedColumns, arrays: CompactedDiff | None
) -> document.HolderColumns:
    told = {
        "node": compacted.holder_node,
        "kind": compacted.holder_kind,
        "sampled": compacted.holder_is_sampled,
        **compacted.columns,
        **(arrays.columns if arrays else {}),
    }
    names = [name for name in document.HolderColumns.__annotations__ if name in told]
    return cast("document.HolderColumns", {name: columns.add(told[name]) for name in names})


def _ages(capture: Capture, compacted: CompactedCapture, columns: PackedColumns) -> document.CaptureParts:
    """When what is live at the end was allocated: for each holder, its bytes by quarter of the recording's time."""
    taken, quarter = snapshots(capture.tables), quarters(capture.tables, capture.end.at_ns)
    if taken is None or quarter is None:
        return {}
    holder, length = compacted.holder_of_account, len(compacted.holder_node)
    chosen = [np.flatnonzero((quarter == part) & (holder >= 0)) for part in range(PARTS)]
    parts = [sum_at(length, holder[accounts], capture.end.bytes[accounts]) for accounts in chosen]
    return {"ages": {"snapshots": len(taken), "end_bytes": list(map(columns.add, parts))}}


def _survivors(capture: Capture) -> dict[object, document.AliveData]:
    """The types of what is live at the end and what holds it, of the lines with most; nothing without a search for
    holders."""
    if last_search(capture.tables) is None:
        return {}
    rows = survivors(capture.end, described=_MOST_DESCRIBED)[:_MOST_DESCRIBED]
    return {
        row_key(row.group, row.frame): {
            "types": [printable(name, _LONGEST_NAME) for name in row.types],
            "held_by": printable(row.held_by, _LONGEST_NAME),
        }
        for row in rows
    }


def _user_lines(
    capture: Capture, compacted: CompactedCapture, columns: PackedColumns, arrays: CompactedDiff | None
) -> document.CaptureParts:
    """The row of the common ranking for each holder, so that the page ranks any moment by the rules of
    `rank_lines()`."""
    if arrays:
        return {}
    path = compacted.holder_node
    # Merged stacks belong to the row of the caller into which they were merged.
    path = np.where(compacted.node_of_path[path] < 0, compacted.parent[path], path)
    found = rows_of_paths(capture.tables, compacted.node_of_path[path], compacted.columns["peak_bytes"])
    path_of_node = {node: path for path, node in enumerate(compacted.node_of_path.tolist()) if node in found.untouched}
    untouched = [
        (path_of_node[node], count, found.untouched_row[node])
        for node, count in found.untouched.items()
        if node in path_of_node
    ]
    alive, unknown = _survivors(capture), document.AliveData()
    lines: document.LineColumns = {
        "rows": [
            {"group": group, **frame_data(frame), **alive.get(row_key(group, frame), unknown)}
            for group, frame in found.rows
        ],
        "row": columns.add(found.row),
        "libraries": found.libraries,
        "library": columns.add(found.library),
        "untouched_node": columns.add([path for path, _, _ in untouched]),
        "untouched_bytes": columns.add([count for _, count, _ in untouched]),
        "untouched_row": columns.add([row for _, _, row in untouched]),
    }
    return {"user_lines": lines}


def _slices(capture: Capture, columns: PackedColumns) -> document.SliceColumns:
    names = document.SliceColumns.__annotations__
    packed = {name: columns.add([getattr(piece, name) for piece in capture.slices]) for name in names}
    return cast("document.SliceColumns", packed)
