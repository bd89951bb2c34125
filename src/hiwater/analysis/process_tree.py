"""Several processes side by side: whose child is whose, and what those of one machine held at one instant.

Peaks do not add up: each process has its own at a moment of its own. What adds up is what processes held at the same instant, and that
is known where they share a wall clock, which processes of one machine (one boot) do.

Between two points of a process's timeline its figure is not known. A sum takes each process's last point before the instant; `error_bytes`
is how far the points on either side of it are apart, over all processes. `at_most_bytes` is a bound that needs no such assumption:
no process held more in a slice of time than that slice's highest moment, which is recorded exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.reconcile import standard_error_bytes
from hiwater.capture import Capture
from hiwater.capture.paths import Ints


@dataclass(frozen=True, slots=True)
class Instant:
    """The highest sum of what the processes of one machine held at the same instant.

    `at_unix_ns` is wall clock time. `processes` had begun and not ended then. `spacing_ns` is how far points on either
    side of the instant are apart at most. `at_most_bytes` is None where a process's figures are samples alone.
    """

    bytes: int
    error_bytes: int
    at_most_bytes: int | None
    at_unix_ns: int
    spacing_ns: int
    processes: int


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """One machine, between one boot and the next, and the captures made on it; None where no capture knows the figure."""

    name: str
    captures: tuple[Capture, ...]
    allocated: Instant | None
    resident: Instant | None


@dataclass(frozen=True, slots=True)
class _Track:
    """What one process held over time: points in wall clock nanoseconds, each good until the next, the last until `end_ns`; and
    bounds that nothing was above, each from its time on (None: there are none)."""

    at_ns: Ints
    bytes: Ints
    end_ns: int
    bounds: tuple[Ints, Ints] | None


def hosts(captures: Sequence[Capture]) -> list[Host]:
    """The machines of these captures, in the order in which they come."""
    of_host: dict[tuple[str, str], list[Capture]] = {}
    for capture in captures:
        boot = capture.tables.header["boot_id"].decode("ascii", "replace")
        # A container has a name of its own and the machine's clock and memory: one boot is one machine.
        of_host.setdefault((boot, "" if boot else capture.facts.get("host", "")), []).append(capture)
    found = []
    for members in of_host.values():
        names = dict.fromkeys(capture.facts.get("host", "") for capture in members)
        processes = _distinct(members)
        known = [capture for capture in processes if not capture.is_timeline]
        spans: dict[int, list[tuple[Capture, int, int]]] = {}
        for capture in processes:
            spans.setdefault(capture.process.pid, []).append((capture, *_span(capture)))
        found.append(
            Host(
                ", ".join(name for name in names if name) or "this machine", tuple(members),
                _with_chance(_highest([_allocated(capture) for capture in known]), known),
                _highest([track for capture in processes for track in _resident(capture, spans)]),
            )
        )  # fmt: skip
    return found


def _distinct(captures: Iterable[Capture]) -> list[Capture]:
    """Each recording once: of its snapshots, that which tells most."""
    longest: dict[tuple[int, int, int], Capture] = {}
    for capture in captures:
        header = capture.tables.header
        key = (header["pid"], header["process_start_ticks"], header["started_unix_ns"])
        if key not in longest or capture.process.duration_ns > longest[key].process.duration_ns:
            longest[key] = capture
    return list(longest.values())


def _allocated(capture: Capture) -> _Track:
    """Samples, and the highest moment of each slice, which is exact; nowhere above what the slice allows."""
    start, end = _span(capture)
    timeline, slices = capture.timeline, capture.slices
    begins = np.array([piece.start_ns for piece in slices], np.int64)
    allowed = np.array([max(0, piece.peak_bytes) for piece in slices], np.int64)
    at = np.concatenate([timeline.at_ns, np.array([piece.peak_ns for piece in slices], np.int64)])
    held = np.concatenate([timeline.allocated_bytes, np.array([piece.peak_bytes for piece in slices], np.int64)])
    order = np.argsort(at, kind="stable")
    at, held = at[order], held[order]
    points = np.unique(np.concatenate([at, begins[begins >= at[0]]]))
    last = held[np.searchsorted(at, points, side="right") - 1]
    bound = allowed[np.maximum(0, np.searchsorted(begins, points, side="right") - 1)]
    return _Track(start + points, np.minimum(last, bound), end, (start + begins, allowed))


def _resident(capture: Capture, spans: dict[int, list[tuple[Capture, int, int]]]) -> list[_Track]:
    """The process, and those it was watched with that have no capture of their own. `spans` says when each process number was recorded."""
    start, end = _span(capture)
    resident, timeline = capture.resident, capture.timeline
    bound = resident.peak_bytes + resident.error_bytes if resident.exact else None
    tracks = [_resident_track(start + timeline.at_ns, timeline.resident_bytes, (start, end), bound)]
    for process in capture.processes[1:]:
        ended = end if process.end_ns is None else start + process.end_ns
        began = start + process.start_ns
        is_recorded = any(
            first < ended and began < last for other, first, last in spans.get(process.pid, ()) if other is not capture
        )
        if len(process.at_ns) and not is_recorded:
            exact = process.peak_bytes if process.exact else None
            tracks.append(_resident_track(start + process.at_ns, process.resident_bytes, (began, ended), exact))
    return [track for track in tracks if len(track.at_ns)]


def _resident_track(at: Ints, held: Ints, span: tuple[int, int], bound: int | None) -> _Track:
    end = max(span[1], int(at[-1])) if len(at) else span[1]
    bounds = None if bound is None else (np.array(span[:1], np.int64), np.array([bound], np.int64))
    return _Track(at, held, end, bounds)


def _span(capture: Capture) -> tuple[int, int]:
    start = min(capture.process.started_unix_ns, 1 << 62)
    return start, start + min(capture.process.duration_ns, 1 << 61)


def _highest(tracks: Sequence[_Track]) -> Instant | None:
    """The instant at which the sum of the last points is highest."""
    tracks = [
        replace(track, end_ns=max(track.end_ns, int(track.at_ns[-1]) + 1)) for track in tracks if len(track.at_ns)
    ]
    if not tracks:
        return None
    at, total = _sum_over_time([(track.at_ns, track.bytes, track.end_ns) for track in tracks])
    best = int(np.argmax(total))
    instant = int(at[best])
    error = spacing = running = 0
    for track in tracks:
        after = int(np.searchsorted(track.at_ns, instant, side="right"))
        if not after or instant >= track.end_ns:
            continue
        running += 1
        if after < len(track.at_ns) and int(track.at_ns[after - 1]) != instant:
            error += abs(int(track.bytes[after]) - int(track.bytes[after - 1]))
            spacing = max(spacing, int(track.at_ns[after]) - int(track.at_ns[after - 1]))
    bounds = [(*track.bounds, track.end_ns) for track in tracks if track.bounds is not None]
    at_most = None
    if len(bounds) == len(tracks):
        at_most = max(int(_sum_over_time(bounds)[1].max()), int(total[best]))
    return Instant(int(total[best]), error, at_most, instant, spacing, running)


def _sum_over_time(steps: Sequence[tuple[Ints, Ints, int]]) -> tuple[Ints, Ints]:
    """The sum of step functions, each 0 before its first time and from its end on: distinct times, and the sum from each on."""
    times, changes = [], []
    for at, held, end in steps:
        times += [at, np.array([end], np.int64)]
        changes += [np.diff(held, prepend=0), np.array([-int(held[-1])], np.int64)]
    at, change = np.concatenate(times), np.concatenate(changes)
    distinct, back = np.unique(at, return_inverse=True)
    return distinct, np.cumsum(sums.sum_at(len(distinct), back, change))


def _with_chance(instant: Instant | None, captures: Sequence[Capture]) -> Instant | None:
    """With two standard errors added where captures are sampled: their figures are estimates to begin with."""
    if instant is None:
        return None
    variance = sum(standard_error_bytes(capture.peak) ** 2 for capture in captures)
    chance = 2 * math.ceil(math.sqrt(variance))
    at_most = None if instant.at_most_bytes is None else instant.at_most_bytes + chance
    return Instant(
        instant.bytes, instant.error_bytes + chance, at_most, instant.at_unix_ns, instant.spacing_ns, instant.processes
    )


# Families


def parents(captures: Sequence[Capture]) -> list[int | None]:
    """For each capture, which of the others is that of its parent process; None where none of them is."""
    numbered: dict[tuple[object, str], list[int]] = {}
    for number, capture in enumerate(captures):
        numbered.setdefault((capture.tables.header["boot_id"], str(capture.process.pid)), []).append(number)
    return [_parent(captures, numbered, number) for number in range(len(captures))]


def _parent(captures: Sequence[Capture], numbered: dict[tuple[object, str], list[int]], number: int) -> int | None:
    """`numbered` are the captures of each process number on each machine: a number may be used again."""
    child = captures[number]
    start = child.process.started_unix_ns
    for other in numbered.get((child.tables.header["boot_id"], child.facts.get("ppid", "")), ()):
        if other == number:
            continue
        first, last = _span(captures[other])
        if (first < start or (first == start and other < number)) and start <= last:
            return other
    return None


def pairs(before: Sequence[Capture], after: Sequence[Capture]) -> list[tuple[Capture, Capture]]:
    """Which process of one run was which of another: equal rank and program, then the order in which they began.

    Of two processes there is one pair, whatever they are called.
    """
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    named = [_by_role(captures) for captures in (before, after)]
    return [(capture, named[1][role]) for role, capture in named[0].items() if role in named[1]]


def _by_role(captures: Sequence[Capture]) -> dict[tuple[str, str, int], Capture]:
    found: dict[tuple[str, str, int], Capture] = {}
    known = Counter[tuple[str, str]]()
    for capture in sorted(captures, key=lambda one: (one.process.started_unix_ns, one.process.pid)):
        program = capture.process.argv[0].rsplit("/", 1)[-1] if capture.process.argv else ""
        program = capture.device or program
        rank = capture.facts.get("rank", "")
        found[rank, program, known[rank, program]] = capture
        known[rank, program] += 1
    return found
