"""Chrome's trace event format, which Perfetto reads: memory as counters over time, scopes as slices, happenings as instants.

Times are microseconds since the earliest of the recordings began; the captures of several processes stand where the wall clock puts them.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from heapq import heappop, heappush
from itertools import count
from typing import Any, TextIO

from hiwater.capture import Capture, ScopeSpan
from hiwater.capture.format import COUNTED_KINDS
from hiwater.report.export.columns import EXPORTER
from hiwater.report.formatting import printable
from hiwater.report.request import Report

RESIDENT, ALLOCATED = "resident memory (bytes)", "allocated memory (requested bytes)"
RESERVED = "reserved memory of the device (bytes)"
_MEASURES = {
    RESIDENT: "bytes that the process had in RAM, as sampled",
    ALLOCATED: "requested bytes of live blocks, used anonymous mappings and shared memory that the process made, by kind, as sampled",
    RESERVED: "bytes that the device's allocator had taken from the driver",
    "allocated peak": "the highest moment of allocated memory; args are bytes and blocks",
    "scopes": "named intervals that the program told of; args are resident bytes, and allocated ones where their name says so",
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
        exactness = report.exactness(peak)
        args = {"allocated_bytes": peak.allocated_bytes, "blocks": peak.allocated_blocks, "exactness": exactness}
        yield {"ph": "i", "s": "p", "name": "allocated peak", "pid": pid, "tid": 0, "ts": peak.at_ns, "args": args}
    for marker in (*capture.markers, *capture.device_refusals):
        args = {"value": marker.value, "thread": printable(marker.thread, 100)}
        yield {
            "ph": "i",
            "s": "p",
            "name": printable(marker.name, 200) or marker.kind,
            "pid": pid,
            "tid": 0,
            "ts": marker.at_ns,
            "args": args,
        }


def _scopes(capture: Capture) -> Iterator[dict[str, Any]]:
    """Scopes as complete events. Those of one track must lie in one another or apart; one that crosses another gets a track beside."""
    lanes: dict[tuple[int, int], _Tracks] = {}
    for scope in sorted(capture.scopes, key=lambda scope: (scope.start_ns, -scope.end_ns)):
        lane = lanes.setdefault((scope.pid, scope.thread_id), _Tracks()).place(scope)
        sizes = {name: count for name, count in asdict(scope).items() if name.endswith("_bytes")}
        yield {
            "ph": "X", "cat": "scope", "name": printable(scope.name, 200), "pid": scope.pid,
            "tid": scope.thread_id if lane == 0 else _FIRST_LANE + scope.thread_id + lane, "ts": scope.start_ns,
            "dur": (scope.end_ns - scope.start_ns) / 1000,
            "args": {name: count for name, count in sizes.items() if count is not None},
        }  # fmt: skip


class _Tracks:
    """The tracks of one thread's scopes, which come in the order of their starts. A track is the ends of what is open on it."""

    def __init__(self) -> None:
        self._open_ends: list[list[int]] = []
        self._busy: list[tuple[int, int]] = []  # (end of what was opened last, track), sorted
        self._idle: list[int] = []  # a heap

    def place(self, scope: ScopeSpan) -> int:
        """The track for a scope: where it lies most closely in what is open, else the first one with nothing open, else a new one."""
        self._close(scope.start_ns)
        place = bisect_left(self._busy, (scope.end_ns, 0))
        if place < len(self._busy):
            track = self._busy.pop(place)[1]
        elif self._idle:
            track = heappop(self._idle)
        else:
            track = len(self._open_ends)
            self._open_ends.append([])
        self._open_ends[track].append(scope.end_ns)
        insort(self._busy, (scope.end_ns, track))
        return track

    def _close(self, now_ns: int) -> None:
        """Take what has ended off its track."""
        ended = bisect_left(self._busy, (now_ns + 1, 0))
        tracks = [track for _, track in self._busy[:ended]]
        del self._busy[:ended]
        for track in tracks:
            ends = self._open_ends[track]
            while ends and ends[-1] <= now_ns:
                ends.pop()
            if ends:
                insort(self._busy, (ends[-1], track))
            else:
                heappush(self._idle, track)
