"""Chrome's trace event format, which Perfetto reads: memory as counters over time, scopes as slices, happenings as instants.

Times are microseconds since the earliest of the recordings began; the captures of several processes stand where the wall clock puts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TextIO

from hiwater.capture import Capture, ScopeSpan
from hiwater.capture.layout import COUNTED_KINDS
from hiwater.views.exports import EXPORTER
from hiwater.views.report import Report
from hiwater.views.words import printable

RESIDENT, ALLOCATED = "resident memory (bytes)", "allocated memory (requested bytes)"
RESERVED = "reserved memory of the device (bytes)"
_MEASURES = {
    RESIDENT: "bytes that the process had in RAM, as sampled",
    ALLOCATED: "requested bytes of live blocks and used anonymous mappings, by kind, as sampled",
    RESERVED: "bytes that the device's allocator had taken from the driver",
    "allocated peak": "the highest moment of allocated memory; args are bytes and blocks",
    "scopes": "named intervals that the program told of; args are resident bytes",
}
_NEXT_MACHINE = 1 << 23  # above any process number of Linux's
_FIRST_LANE = 1 << 40  # thread ids that no kernel gives, for scopes that overlap without one lying in the other


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One trace of all captures. What is shown does not depend on the moment or grouping asked for."""
    start_ns = min(report.capture.process.started_unix_ns for report in reports)
    said = {
        "displayTimeUnit": "ms",
        "otherData": {
            "exporter": EXPORTER, "time": "microseconds since the first recording began", "started_unix_ns": start_ns, "units": "bytes",
            "measures": _MEASURES,
            "exactness": {str(report.capture.process.pid): report.exactness(report.capture.peak) for report in reports},
        },
    }  # fmt: skip
    stream.write(json.dumps(said)[:-1] + ',\n"traceEvents": [')
    separator, known = "\n", set[int]()
    for report in reports:
        for event in _events(report, report.capture.process.started_unix_ns - start_ns, known):
            stream.write(separator + json.dumps(event))
            separator = ",\n"
    stream.write("]\n}\n")


def _events(report: Report, shift_ns: int, known: set[int]) -> Iterator[dict[str, Any]]:
    """The events of one capture. A process number that another capture has already (of another machine, or used again) is replaced."""
    capture = report.capture
    number_of: dict[int, int] = {}
    for pid in (capture.process.pid, *(process.pid for process in capture.processes)):
        number_of[pid] = next(number for number in count(pid, _NEXT_MACHINE) if number not in known)
    known.update(number_of.values())
    for event in (*_names(report), *_counters(capture), *_happenings(report), *_scopes(capture)):
        event["pid"] = number_of.get(event["pid"], event["pid"])
        if "ts" in event:
            event["ts"] = (event["ts"] + shift_ns) / 1000
        yield event


def _names(report: Report) -> Iterator[dict[str, Any]]:
    pid = report.capture.process.pid
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": printable(report.title, 200)}}
    for process in report.capture.processes[1:]:
        name = printable(" ".join(process.command) or process.name, 200)
        yield {"ph": "M", "name": "process_name", "pid": process.pid, "tid": 0, "args": {"name": name}}


def _counters(capture: Capture) -> Iterator[dict[str, Any]]:
    pid, timeline = capture.process.pid, capture.timeline
    kinds = [(kind, timeline.kind_bytes[kind].tolist()) for kind in COUNTED_KINDS]
    for number, (at, resident) in enumerate(
        zip(timeline.at_ns.tolist(), timeline.resident_bytes.tolist(), strict=True)
    ):
        if capture.device is None:
            yield {"ph": "C", "name": RESIDENT, "pid": pid, "tid": 0, "ts": at, "args": {"resident": resident}}
        else:
            held = int(timeline.kind_bytes["reserved"][number])
            yield {"ph": "C", "name": RESERVED, "pid": pid, "tid": 0, "ts": at, "args": {"reserved": held}}
        if not capture.is_timeline:
            args = {kind: values[number] for kind, values in kinds}
            yield {"ph": "C", "name": ALLOCATED, "pid": pid, "tid": 0, "ts": at, "args": args}
    for process in capture.processes[1:]:
        for at, resident in zip(process.at_ns.tolist(), process.resident_bytes.tolist(), strict=True):
            yield {"ph": "C", "name": RESIDENT, "pid": process.pid, "tid": 0, "ts": at, "args": {"resident": resident}}


def _happenings(report: Report) -> Iterator[dict[str, Any]]:
    capture, peak = report.capture, report.capture.peak
    pid = capture.process.pid
    if not capture.is_timeline:
        args = {
            "allocated_bytes": peak.allocated_bytes,
            "blocks": peak.allocated_blocks,
            "exactness": report.exactness(peak),
        }
        yield {"ph": "i", "s": "p", "name": "allocated peak", "pid": pid, "tid": 0, "ts": peak.at_ns, "args": args}
    for mark in (*capture.marks, *capture.device_refusals):
        args = {"value": mark.value, "thread": printable(mark.thread, 100)}
        yield {"ph": "i", "s": "p", "name": mark.kind, "pid": pid, "tid": 0, "ts": mark.at_ns, "args": args}


def _scopes(capture: Capture) -> Iterator[dict[str, Any]]:
    """Scopes as complete events. Those of one track must lie in one another or apart; one that crosses another gets a track beside."""
    lanes: dict[tuple[int, int], list[list[int]]] = {}
    for scope in sorted(capture.scopes, key=lambda scope: (scope.start_ns, -scope.end_ns)):
        tracks = lanes.setdefault((scope.pid, scope.thread_id), [])
        lane = _lane(tracks, scope)
        sizes = {"start_bytes": scope.start_bytes, "end_bytes": scope.end_bytes, "peak_bytes": scope.peak_bytes}
        yield {
            "ph": "X", "cat": "scope", "name": printable(scope.name, 200), "pid": scope.pid,
            "tid": scope.thread_id if lane == 0 else _FIRST_LANE + scope.thread_id + lane, "ts": scope.start_ns,
            "dur": (scope.end_ns - scope.start_ns) / 1000,
            "args": {name: count for name, count in sizes.items() if count is not None},
        }  # fmt: skip


def _lane(tracks: list[list[int]], scope: ScopeSpan) -> int:
    """The first track on which the scope lies in what is open there, or after all of it; a track is the ends of what is open."""
    for number, open_ends in enumerate(tracks):
        while open_ends and open_ends[-1] <= scope.start_ns:
            open_ends.pop()
        if not open_ends or scope.end_ns <= open_ends[-1]:
            open_ends.append(scope.end_ns)
            return number
    tracks.append([scope.end_ns])
    return len(tracks) - 1
