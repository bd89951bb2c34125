"""What one process held over time: readings of it, and what its slices tell of the time between two readings.

A process is read every few milliseconds while it works. A forked child that waits from its first moments on is read
when it wakes, before it changes: it has held as much since it began to wait. Its slices end before a large rise and
after a large fall, so they tell when that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from hiwater.capture.limits import SeenFromOutside
from hiwater.capture.model import Capture
from hiwater.capture.paths import Ints, sums_over_time
from hiwater.capture.process import QUIET_IN_CHILD_NS
from hiwater.capture.run_index import ShortProcess

_TICK_NS, _LONGEST_START_NS = 10_000_000, 1_000_000_000
_FILLS_NS = 1_000_000_000  # in which a program touches what it has allocated
_SPARSE = 1024  # a long recording keeps a reading in each 2,048th of its time: two of them are the next ones


@dataclass(frozen=True, slots=True)
class Track:
    """The memory of one process over time, in wall clock nanoseconds: `bytes[i]` from `at_ns[i]` to the next, the
    last until `end_ns`; and upper bounds, each from its time on (None: there are none)."""

    at_ns: Ints
    bytes: Ints
    end_ns: int
    bounds: tuple[Ints, Ints] | None
    least: Ints | None = None
    """Where the highest moment of a slice stands at the time from which on it may have been: what the process held
    at least at this time."""
    unmeasured: Ints | None = None
    """Of `bytes`, what is inferred from allocations alone."""
    most: Ints | None = None
    """What the process may have held until the next time. None: as much as then."""
    shares: bool = False  # pages that it shares with others count in parts
    is_process: bool = True  # else what the sum of several is too high by

    def at(self, times: Ints) -> Ints:
        """The bytes at these times; 0 outside the recording."""
        place = np.searchsorted(self.at_ns, times, side="right") - 1
        return np.where((place >= 0) & (times < self.end_ns), self.bytes[place], 0)

    @property
    def steps(self) -> tuple[Ints, Ints, int]:
        """As a step function: times, bytes from each on, and its end."""
        return self.at_ns, self.bytes, self.end_ns

    @property
    def highest_steps(self) -> tuple[Ints, Ints, int]:
        """The same with the highest that may have been until the next time."""
        most = self.most if self.most is not None else np.maximum(self.bytes, np.append(self.bytes[1:], 0))
        return self.at_ns, most, self.end_ns

    @property
    def lowest_steps(self) -> tuple[Ints, Ints, int]:
        """The same with the lowest that may have been until the next time, or before the highest moment of a slice."""
        if not self.is_process:
            return self.at_ns, self.bytes - (0 if self.unmeasured is None else self.unmeasured), self.end_ns
        lowest = np.minimum(self.bytes, np.append(self.bytes[1:], self.bytes[-1]))
        lowest = lowest if self.least is None else np.minimum(lowest, self.least)
        unmeasured = 0 if self.unmeasured is None else np.maximum(self.unmeasured, np.append(self.unmeasured[1:], 0))
        return self.at_ns, np.maximum(0, lowest - unmeasured), self.end_ns

    @classmethod
    def of_counted_twice(cls, times: Ints, found: Ints, least: Ints, most: Ints, end_ns: int) -> Track:
        """What the sum of several is too high by, between `least` and `most`. It changes as they do, at the same
        time."""
        error = np.maximum(most - found, found - least)
        bound = times[:1], np.zeros(1, np.int64)
        return cls(times, -found, end_ns, bound, unmeasured=error, most=-least, is_process=False)

    def lasting(self) -> Track:
        """The same, with an end behind its last moment."""
        return replace(self, end_ns=max(self.end_ns, int(self.at_ns[-1]) + 1))


def sum_of_steps(steps: Sequence[tuple[Ints, Ints, int]]) -> tuple[Ints, Ints]:
    """The sum of step functions, each 0 before its first time and from its end on: distinct times, and the sum from
    each on."""
    times, total = sums_over_time(
        [(np.append(at, end), np.append(np.diff(held, prepend=0), -held[-1])) for at, held, end in steps]
    )
    return times, total


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of a process: times since the recording began, a figure, and the allocated bytes then."""

    at_ns: Ints
    bytes: Ints
    allocated_bytes: Ints
    is_complete: bool  # the last one is of the process's end


def span(capture: Capture) -> tuple[int, int]:
    """When the recording began and ended."""
    start = min(capture.process.started_unix_ns, 1 << 62)
    return start, start + min(capture.process.duration_ns, 1 << 61)


def allocated(capture: Capture) -> Track:
    """What the process had allocated. The peak of each slice is recorded exactly, and bounds it."""
    start, end = span(capture)
    timeline, slices = capture.timeline, capture.slices
    begins = np.array([piece.start_ns for piece in slices], np.int64)
    bounds = np.array([max(0, piece.peak_bytes) for piece in slices], np.int64)
    live = max(0, int(capture.header["live_bytes"]))
    at, held = np.append(timeline.at_ns, end - start), np.append(timeline.allocated_bytes, live)
    if len(at) > 1 and at[-1] <= at[-2]:
        at, held = at[:-1], held[:-1]
    at, held, before = _between(Readings(at, held, held, is_complete=True), begins, bounds, end - start)
    peaks_at = np.array([min(piece.peak_ns, end - start) for piece in slices], np.int64)
    times = np.unique(np.concatenate([at, peaks_at]))
    place = np.maximum(0, np.searchsorted(at, times, side="right") - 1)
    bound = bounds[np.maximum(0, np.searchsorted(begins, times, side="right") - 1)]
    most, least = np.minimum(held[place], bound), np.minimum(np.minimum(held, before)[place], bound)
    np.maximum.at(most, np.searchsorted(times, peaks_at), bounds)
    return Track(start + times, most, end, (start + begins, bounds), least)


@dataclass(frozen=True, slots=True)
class Seen:
    """Readings of a process from outside, in time since its recording began: below zero before it could be recorded,
    and until it was gone."""

    at_ns: Ints
    resident_bytes: Ints
    excess_bytes: Ints
    """Of anonymous memory."""
    shared_bytes: Ints
    mapped_bytes: Ints
    mapped_excess_bytes: Ints


def seen_from_outside(captures: Sequence[Capture]) -> list[Seen]:
    """For each process, the readings of it that others took: of a program also those before its recording began, and
    of all those after its end. What a process had before it executed another program, it has for a moment after the
    end of that recording, too."""
    same, readers = dict[tuple[bytes, int], list[Capture]](), [one for one in captures if one.relatives]
    for capture in captures:
        same.setdefault((capture.header["boot_id"], capture.process.pid), []).append(capture)
    found = []
    for capture in captures:
        (start, end), process, boot = span(capture), capture.process, capture.header["boot_id"]
        others = same[boot, process.pid]
        ended_before = max((span(one)[1] for one in others if span(one)[1] <= start), default=0)
        following = min((one for one in others if span(one)[0] > start), key=span, default=None)
        first = start if process.started_by == "fork" else ended_before
        at, *held = _readings(readers, boot, process.pid)
        is_its = (at > first) & ((at >= start) | (held[0] <= capture.resident.start_bytes))
        if following is None and process.ended_by == "exec":  # by a program that is not recorded
            is_its &= at < end
        elif following is not None:
            is_its &= (at < end) | ((at < span(following)[0]) & (held[0] > following.resident.start_bytes))
        if (is_its & (at < start)).any():  # until a process executes a program it may have the memory of its parent
            lent = set(_readings(readers, boot, process.parent_pid or 0)[1].tolist())
            is_its &= (at >= start) | [count not in lent for count in held[0].tolist()]
        found.append(Seen(at[is_its] - start, *(column[is_its] for column in held)))
    return found


def _readings(readers: Sequence[Capture], boot: bytes, pid: int) -> list[Ints]:
    """The readings of a process number: wall clock times, ascending, resident bytes and excess."""
    parts = [one.relatives[pid] for one in readers if pid in one.relatives and one.header["boot_id"] == boot]
    columns = [
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
        for name in (field.name for field in fields(SeenFromOutside))
    ]
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def starting(captures: Sequence[Capture]) -> list[int]:
    """For each process, how long it ran before its recording began, in nanoseconds, at least: what an interpreter needs
    to begin. 0 where that is not known.

    The kernel counts from the start of the machine, in hundredths of a second. A forked process is recorded at once, so
    these tell when that was.
    """
    starts = [(span(one)[0], int(one.header["process_start_ticks"]) * _TICK_NS) for one in captures]
    forked = [
        start - ticks for one, (start, ticks) in zip(captures, starts, strict=True) if one.process.started_by == "fork"
    ]
    same = Counter(one.process.pid for one in captures)
    return [
        max(0, start - ticks - min(forked))
        if forked and one.process.started_by == "exec" and same[one.process.pid] == 1
        else 0
        for one, (start, ticks) in zip(captures, starts, strict=True)
    ]


def resident(capture: Capture, seen: Seen, starting_ns: int = 0) -> Track | None:
    """The resident memory of the process without hiwater's overhead; None where it was never read. Of the time in
    which it was `starting` it had something up to what its recording began with."""
    start, end = span(capture)
    timeline, header, figures = capture.timeline, capture.header, capture.resident
    at, held, live = timeline.at_ns, timeline.resident_bytes + timeline.overhead_bytes, timeline.allocated_bytes
    if len(seen.at_ns):
        at, first = np.unique(np.concatenate([at, seen.at_ns]), return_index=True)
        held = np.concatenate([held, seen.resident_bytes])[first]
        live = np.concatenate([live, allocated(capture).at(start + seen.at_ns)])[first]
    is_ended = bool(header["ended_ns"]) and not capture.is_timeline
    if is_ended and end - start not in at:
        place = int(np.searchsorted(at, end - start))
        at, held = np.insert(at, place, end - start), np.insert(held, place, figures.end_bytes)
        live = np.insert(live, place, max(0, int(header["live_bytes"])))
    if not len(at):
        return None
    # Of a killed process the peak is exact up to its last reading; what may have come after it is added below.
    is_counted = header["resident_exact"] == 1
    bound = figures.program_peak_bytes + figures.error_bytes if is_counted else None
    if capture.is_timeline:
        return of_samples(start + at, held, (start, end), bound)
    slices = capture.slices
    begins = np.array([piece.start_ns for piece in slices], np.int64)
    bounds = np.array([max(0, piece.peak_bytes) for piece in slices], np.int64)
    if not is_ended:
        # It may have been killed. What it had allocated at last counts as touched, and so does what it had allocated
        # shortly before the last reading.
        since = int(np.searchsorted(at, at[-1] - _FILLS_NS))
        untouched = max(0, int(live[-1] - live[since] - max(0, held[-1] - held[since])))
        begins = np.append(begins, [int(at[-1]) + 1, max(int(begins[-1]), int(at[-1]) + QUIET_IN_CHILD_NS)])
        bounds = np.append(bounds, np.array([live[-1], max(0, int(header["live_bytes"]))]) + untouched)
        order = np.argsort(begins, kind="stable")
        begins, bounds = begins[order], bounds[order]
    known_from = int(at[0])
    if -_LONGEST_START_NS < -starting_ns < min(0, known_from):
        half = figures.start_bytes // 2
        at, held, live = (
            np.insert(column, 0, value) for column, value in ((at, -starting_ns), (held, half), (live, 0))
        )
    readings = Readings(at, held, live, is_complete=is_ended)
    at, held, before = _between(readings, begins, bounds, end - start)
    is_behind = (at > readings.at_ns[-1]) & (not is_ended)
    unmeasured = np.where(is_behind, np.abs(held - before), 0)
    unmeasured = np.where(at < known_from, figures.start_bytes // 2, unmeasured)
    rise = np.where(is_behind, 0, np.maximum(0, held - before))  # since the beginning of the slice
    held = np.maximum(0, held - capture.overhead_at(at))
    begin = start + min(0, int(at[0]))
    most = None if bound is None else (np.array([begin], np.int64), np.array([bound + int(unmeasured.max())], np.int64))
    return Track(start + at, held, end, most, held - rise, unmeasured)


def of_samples(at: Ints, held: Ints, within: tuple[int, int], bound: int | None) -> Track:
    """The track of a process of which samples are known, and maybe its peak."""
    end = max(within[1], int(at[-1])) if len(at) else within[1]
    bounds = None if bound is None else (np.array(within[:1], np.int64), np.array([bound], np.int64))
    return Track(at, held, end, bounds)


def of_short(process: ShortProcess, bound: int) -> Track:
    """The track of a process of which only its peak is known."""
    start = min(process.started_unix_ns, 1 << 62)
    end = start + min(process.duration_ns, 1 << 61)
    return of_samples(np.array([start], np.int64), np.zeros(1, np.int64), (start, end), min(bound, 1 << 52))


def _between(readings: Readings, begins: Ints, bounds: Ints, end_ns: int) -> tuple[Ints, Ints, Ints]:
    """The readings and what is known between them and behind the last: times, bytes, and the bytes at the reading
    before.

    A slice that began after a reading tells by its highest moment by how much the process has risen or fallen since, as
    far as the next reading confirms it. Where the next reading comes late, the process was waiting, and held from its
    first moments on what it held then.
    """
    at, held, live = readings.at_ns, readings.bytes, readings.allocated_bytes
    gap = np.diff(at, append=max(end_ns, int(at[-1])))
    is_quiet = gap > np.maximum(QUIET_IN_CHILD_NS, np.append(at[1:], at[-1]) // _SPARSE)
    is_quiet[-1] = False
    rests = at[is_quiet] + QUIET_IN_CHILD_NS
    times = np.unique(np.concatenate([at, begins[(begins > at[0]) & (begins < end_ns)], rests]))
    last = np.searchsorted(at, times, side="right") - 1
    following = np.minimum(last + 1, len(at) - 1)
    piece = np.maximum(0, np.searchsorted(begins, times, side="right") - 1)
    has_changed = (begins[piece] > at[last]) & (times > at[last])
    moved = np.where(has_changed, bounds[piece] - live[last], 0)
    lowest, highest = np.minimum(held[last], held[following]), np.maximum(held[last], held[following])
    is_behind = (last == len(at) - 1) & (not readings.is_complete)
    found = np.where(is_behind, np.maximum(0, held[last] + moved), np.clip(held[last] + moved, lowest, highest))
    waits = is_quiet[last] & (times >= at[last] + QUIET_IN_CHILD_NS)
    found = np.where(waits, held[following], found)
    return times, found, np.where(has_changed & ~waits, held[last], found)


Spans = Mapping[int, Sequence[tuple[Capture, int, int]]]


def watched(capture: Capture, spans: Spans) -> list[Track]:
    """The processes that `hiwater sample` watched beside the first one, and that have no capture of their own.
    `spans` has the recorded times of each process number."""
    start, end = span(capture)
    found = []
    for process in capture.processes[1:]:
        ended = end if process.end_ns is None else start + process.end_ns
        began = start + process.start_ns
        is_recorded = any(
            first < ended and began < last for other, first, last in spans.get(process.pid, ()) if other is not capture
        )
        if len(process.at_ns) and not is_recorded:
            bound = process.peak_bytes if process.exact else None
            found.append(of_samples(start + process.at_ns, process.resident_bytes, (began, ended), bound))
    return found
