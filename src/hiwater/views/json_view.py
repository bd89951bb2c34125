"""The report for machines: `interface.md`'s JSON, described by `report.schema.json` beside this file.

A capture may hold a million stacks, so the list of stacks is written in chunks and never built: the text of a frame is made
once for each distinct frame, the text of a call path once for each caller (kept within a budget).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from hiwater.analysis.forest import Grouping, plant
from hiwater.analysis.ranking import by
from hiwater.analysis.reconcile import standard_error_bytes
from hiwater.capture.layout import CODE_THREAD, COUNTED_KINDS, KINDS
from hiwater.views.report import Report

_STACKS_IN_CHUNK = 8192
_PATH_BUDGET_CHARACTERS = 128 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One report as an object. Of several, the children of the first (by their parent's pid) as its `children` when all
    are; else a list."""
    if len(reports) == 1 or _is_family(reports):
        _write_report(reports[0], reports[1:], stream)
    else:
        _write_list(reports, stream)
    stream.write("\n")


def _is_family(reports: Sequence[Report]) -> bool:
    parent = str(reports[0].capture.process.pid)
    return all(report.capture.facts.get("ppid") == parent for report in reports[1:])


def _write_list(reports: Sequence[Report], stream: TextIO) -> None:
    stream.write("[")
    for number, report in enumerate(reports):
        stream.write(",\n" if number else "\n")
        _write_report(report, (), stream)
    stream.write("]")


def _write_report(report: Report, children: Sequence[Report], stream: TextIO) -> None:
    head = json.dumps(summary(report), indent=1)
    stream.write(head[:-2])  # without the newline and brace that close it: two more members follow
    stream.write(',\n "stacks": [')
    for chunk in _stacks(report):
        stream.write(chunk)
    stream.write('],\n "children": ')
    _write_list(children, stream)
    stream.write("\n}")


def summary(report: Report) -> dict[str, Any]:
    """Everything but the stacks and children, as plain data."""
    capture, moment, peak = report.capture, report.moment, report.capture.peak
    kinds, totals = peak.kind_bytes(), capture.totals
    said = {
        "schema": "hiwater.report/1",
        "process": _process(report),
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "blocks": peak.allocated_blocks,
            "at_ns": peak.at_ns,
            **{f"{kind}_bytes": kinds[kind] for kind in COUNTED_KINDS},
            "standard_error_bytes": standard_error_bytes(peak),
            "recorded_bytes": peak.recorded_bytes,
        },
        "resident": _resident(report),
        "devices": [],
        "end": {"allocated_bytes": capture.end.allocated_bytes, "blocks": capture.end.allocated_blocks},
        "totals": {
            "allocations": totals.allocations,
            "frees": totals.frees,
            "allocated_bytes": totals.allocated_bytes,
            "temporaries": totals.temporaries,
        },
        "lost_events": capture.lost_events,
        "problems": report.problems,
        "mappings": _mappings(report),
        "shown": {
            "at": moment.name,
            "at_ns": moment.at_ns,
            "start_ns": moment.start_ns,
            "end_ns": moment.end_ns,
            "kind": report.kind,
            "bytes": report.holdings.total_bytes,
            "blocks": report.holdings.total_blocks,
            "error_bytes": moment.error_bytes,
        },
    }
    if report.by is not None and report.by != Grouping.stack:
        said["groups"] = _groups(report)
    return said


def _process(report: Report) -> dict[str, Any]:
    process = report.capture.process
    return {
        "pid": process.pid,
        "argv": list(process.argv),
        "python": process.python,
        "hiwater": process.hiwater,
        "mode": process.mode,
        "sample_bytes": process.sample_bytes,
        "ended": process.ended,
        "exit_code": process.exit_code,
        "stop_reason": process.stop_reason,
        "started_at": _date(process.started_unix_ns),
        "duration_ns": process.duration_ns,
    }


def _date(unix_ns: int) -> str | None:
    """ISO 8601 in UTC; None for a time no calendar has."""
    try:
        return (_EPOCH + timedelta(microseconds=unix_ns // 1000)).isoformat()
    except OverflowError:
        return None


def _resident(report: Report) -> dict[str, Any]:
    resident = report.capture.resident
    return {
        "peak_bytes": resident.peak_bytes,
        "start_bytes": resident.start_bytes,
        "end_bytes": resident.end_bytes,
        "exact": resident.exact,
        "error_bytes": resident.error_bytes,
        "source": resident.source,
        "own_bytes": resident.own_bytes,
    }


def _mappings(report: Report) -> list[dict[str, Any]]:
    """Memory that is listed and not counted, at the moment shown: file-backed, shared, reserved, and pymalloc's arenas."""
    kinds, blocks = report.moment.kind_bytes(), report.moment.kind_blocks()
    return [{"class": kind, "bytes": kinds[kind], "blocks": blocks[kind]} for kind in KINDS[len(COUNTED_KINDS) :]]


def _groups(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "function": row.frame.function,
            "file": row.frame.file,
            "line": row.frame.line,
            "own_bytes": row.own_bytes,
            "own_blocks": row.own_blocks,
            "total_bytes": row.total_bytes,
        }
        for row in by(report.capture, report.holdings, report.grouping)
    ]


def _stacks(report: Report) -> Iterator[str]:
    """The members of "stacks" as text, a chunk at a time."""
    paths = _Paths(report)
    held = report.holdings
    lead = "\n"
    for first in range(0, len(held.node), _STACKS_IN_CHUNK):
        part = slice(first, first + _STACKS_IN_CHUNK)
        rows = zip(
            held.node[part].tolist(), held.kind[part].tolist(), held.bytes[part].tolist(), held.blocks[part].tolist(),
            strict=True,
        )  # fmt: skip
        texts = [
            f'{{"bytes":{count},"blocks":{blocks},"kind":"{KINDS[kind]}",{paths.of(node)}]}}'
            for node, kind, count, blocks in rows
        ]
        yield lead + ",\n".join(texts)
        lead = ",\n"


class _Paths:
    """The text of `"thread":…,"frames":[…` (not closed) of any node."""

    def __init__(self, report: Report) -> None:
        capture = report.capture
        forest = plant(capture)
        nodes, codes = capture.tables["nodes"], capture.tables["codes"]
        self._parent: list[int] = nodes["parent"].tolist()
        self._key: list[int] = forest.key.tolist()
        self._frames = forest.frames
        self._is_thread: list[bool] = capture.is_thread_root.tolist()
        self._thread_name = {
            int(code): json.dumps(capture.string(int(codes["function"][code])))
            for code in (codes["kind"] == CODE_THREAD).nonzero()[0]
        }
        self._code: list[int] = nodes["code"].tolist()
        self._frame_texts: dict[int, str] = {}
        self._caller_texts: dict[int, str] = {}
        self._kept_characters = 0

    def of(self, node: int) -> str:
        if node == 0 or self._is_thread[node]:
            return self._root(node)
        caller = self._caller(self._parent[node])
        separator = "" if caller.endswith("[") else ","
        return caller + separator + self._frame(node)

    def _root(self, node: int) -> str:
        return f'"thread":{self._thread_name[self._code[node]] if node else chr(34) * 2},"frames":['

    def _caller(self, node: int) -> str:
        """The text of a node that calls others: kept, since its other callees will ask for it too."""
        known = self._caller_texts.get(node)
        if known is not None:
            return known
        texts = []
        above = node
        while (start := self._caller_texts.get(above)) is None:
            if above == 0 or self._is_thread[above]:
                start = self._root(above)
                break
            texts.append(self._frame(above))
            above = self._parent[above]
        separator = "," if texts and not start.endswith("[") else ""
        text = start + separator + ",".join(reversed(texts))
        self._kept_characters += len(text)
        if self._kept_characters > _PATH_BUDGET_CHARACTERS:
            self._caller_texts.clear()
            self._kept_characters = len(text)
        self._caller_texts[node] = text
        return text

    def _frame(self, node: int) -> str:
        key = self._key[node]
        text = self._frame_texts.get(key)
        if text is None:
            frame = self._frames[key]
            text = f'{{"function":{json.dumps(frame.function)},"file":{json.dumps(frame.file)},"line":{frame.line}}}'
            self._frame_texts[key] = text
        return text
