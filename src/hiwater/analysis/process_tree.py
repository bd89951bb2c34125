"""Several processes: parents and children, and the memory of the processes of one machine at one instant.

Peaks cannot be added, because each process has its peak at a different time. Figures of one instant can be added if the processes share a
wall clock. Processes of one machine (one boot) do.

Between two samples of a process its figure is unknown. A sum uses the last sample of each process before the instant. `error_bytes` is the
difference between the samples on both sides, over all processes, and what of a sample is an estimate. `at_most_bytes` is a bound without this
assumption: in a slice of time no process had more than the peak of the slice, which is recorded exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hiwater.analysis import sums
from hiwater.capture import Capture, ShortProcess
from hiwater.capture.paths import Ints
from hiwater.capture.process import QUIET_IN_CHILD_NS


@dataclass(frozen=True, slots=True)
class Instant:
    """The highest sum of the processes of one machine at the same instant.

    `at_unix_ns` is wall clock time. `processes` is the number of processes that ran then. `spacing_ns` is the longest time between the
    samples on both sides of the instant. `at_most_bytes` is None if a process has only samples.
    """

    bytes: int
    error_bytes: int
    at_most_bytes: int | None
    at_unix_ns: int
    spacing_ns: int
    processes: int
    shared_once: int = 0
    """The number of the processes whose shared pages count in parts (PSS), and so once in the sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """One machine from one boot to the next, and its captures. A figure is None if no capture has it."""

    name: str
    captures: tuple[Capture, ...]
    allocated: Instant | None
    resident: Instant | None


@dataclass(frozen=True, slots=True)
class Track:
    """The memory of one process over time: samples in wall clock nanoseconds, each valid until the next, the last until `end_ns`; and upper
    bounds, each from its time on (None: there are none)."""

    at_ns: Ints
    bytes: Ints
    end_ns: int
    bounds: tuple[Ints, Ints] | None
    shares: bool = False  # pages that it shares with others count in parts
    estimate: tuple[int, int] | None = None  # from when on bytes were not measured, and how many

    def at(self, times: Ints) -> Ints:
        """The bytes at these times; 0 outside the recording."""
        place = np.searchsorted(self.at_ns, times, side="right")
        is_running = (place > 0) & (times < self.end_ns)
        return np.where(is_running, self.bytes[np.maximum(0, place - 1)], 0)


def allocated_tracks(captures: Sequence[Capture]) -> list[tuple[Capture, Track]]:
    """For each process, what it had allocated over time."""
    return [(capture, _allocated(capture)) for capture in _distinct(captures) if not capture.is_timeline]


def hosts(captures: Sequence[Capture], short: Sequence[ShortProcess] = ()) -> list[Host]:
    """The machines of these captures, in the order of their first capture. Of the `short` processes only peaks are known: they count in the
    upper bounds alone."""
    of_host: dict[tuple[str, str], list[Capture]] = {}
    for capture in captures:
        boot = capture.header["boot_id"].decode("ascii", "replace")
        # A container has a name of its own and the machine's clock and memory: one boot is one machine.
        of_host.setdefault((boot, "" if boot else capture.facts.get("host", "")), []).append(capture)
    found = []
    for members in of_host.values():
        names = dict.fromkeys(capture.facts.get("host", "") for capture in members)
        processes = _distinct(members)
        known = [capture for capture in processes if not capture.is_timeline]
        runs = {capture.facts.get("run_id", "") for capture in processes}
        small = [one for one in short if one.run in runs]
        spans: dict[int, list[tuple[Capture, int, int]]] = {}
        for capture in processes:
            spans.setdefault(capture.process.pid, []).append((capture, *_span(capture)))
        shared = _shared(processes)
        found.append(
            Host(
                ", ".join(name for name in names if name) or "this machine", tuple(members),
                _with_chance(
                    _highest([
                        *(_allocated(capture) for capture in known),
                        *(_short(one, one.peak_bytes) for one in small),
                    ]),
                    known,
                ),
                _highest([
                    *(
                        track
                        for capture, excess in zip(processes, shared, strict=True)
                        for track in _resident(capture, spans, excess)
                    ),
                    *(_short(one, one.resident_peak_bytes) for one in small),
                ]),
            )
        )  # fmt: skip
    return found


def _distinct(captures: Iterable[Capture]) -> list[Capture]:
    """Each recording once: of its snapshots, the one with most data."""
    longest: dict[tuple[int, int, int], Capture] = {}
    for capture in captures:
        header = capture.header
        key = (header["pid"], header["process_start_ticks"], header["started_unix_ns"])
        if key not in longest or capture.process.duration_ns > longest[key].process.duration_ns:
            longest[key] = capture
    return list(longest.values())


def _short(process: ShortProcess, bound: int) -> Track:
    start = min(process.started_unix_ns, 1 << 62)
    end = start + min(process.duration_ns, 1 << 61)
    at, most = np.array([start], np.int64), np.array([min(bound, 1 << 52)], np.int64)
    return Track(at, np.zeros(1, np.int64), end, (at, most))


def _allocated(capture: Capture) -> Track:
    """Samples, and the exact peak of each slice, which also bounds the samples."""
    start, end = _span(capture)
    timeline, slices = capture.timeline, capture.slices
    begins = np.array([piece.start_ns for piece in slices], np.int64)
    allowed = np.array([max(0, piece.peak_bytes) for piece in slices], np.int64)
    at = np.concatenate([timeline.at_ns, np.array([piece.peak_ns for piece in slices], np.int64)])
    held = np.concatenate([timeline.allocated_bytes, np.array([piece.peak_bytes for piece in slices], np.int64)])
    order = np.argsort(at, kind="stable")
    at, held = at[order], held[order]
    times = np.unique(np.concatenate([at, begins[begins >= at[0]]]))
    last = held[np.searchsorted(at, times, side="right") - 1]
    bound = allowed[np.maximum(0, np.searchsorted(begins, times, side="right") - 1)]
    return Track(start + times, np.minimum(last, bound), end, (start + begins, allowed))


def _resident(
    capture: Capture, spans: dict[int, list[tuple[Capture, int, int]]], excess: tuple[Ints, Ints]
) -> list[Track]:
    """The process less `excess`, and the watched ones that have no capture of their own. `spans` has the recorded times of each process number."""
    start, end = _span(capture)
    resident, timeline = capture.resident, capture.timeline
    bound = resident.program_peak_bytes + resident.error_bytes if resident.exact else None
    track = _resident_track(start + timeline.at_ns, timeline.resident_bytes, (start, end), bound)
    tracks = [_less_shared(_with_quiet_time(capture, track), *excess)]
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


def _with_quiet_time(capture: Capture, track: Track) -> Track:
    """The track with a sample where a forked child may have begun to wait.

    A child that is 100 ms old has a recorder's thread, which takes samples, once it asks for memory again. One that does not has no sample from
    then on until its thread begins or it ends, and holds meanwhile what it holds at that sample. One that is killed has no sample any more:
    what it had allocated since its last one counts as touched.
    """
    start, end = _span(capture)
    at_ns = start + QUIET_IN_CHILD_NS
    if capture.process.started_by != "fork" or not len(track.at_ns) or at_ns >= end:
        return track
    after = int(np.searchsorted(track.at_ns, at_ns, side="right"))
    if after < len(track.at_ns):
        held, estimate = int(track.bytes[after]), 0
    else:
        estimate = max(0, int(capture.header["live_bytes"]) - int(capture.timeline.allocated_bytes[-1]))
        held = int(track.bytes[-1]) + estimate
    at, values = np.insert(track.at_ns, after, at_ns), np.insert(track.bytes, after, held)
    bounds = None if track.bounds is None else (track.bounds[0], track.bounds[1] + estimate)
    return replace(track, at_ns=at, bytes=values, bounds=bounds, estimate=(at_ns, estimate))


def _shared(processes: Sequence[Capture]) -> list[tuple[Ints, Ints]]:
    """For each process, what other processes count of the pages that it shares with them: wall clock times, and bytes from each on.

    A fork changes what is shared at once, in the process and in all that share with it. So a reading counts from the first fork after the
    reading before it. A forked process that was never read shares what its parent shares, and no more than it had at first.
    """
    starts = [_span(capture)[0] for capture in processes]
    forks = np.array(
        sorted(start for capture, start in zip(processes, starts, strict=True) if capture.process.started_by == "fork"),
        np.int64,
    )
    found = []
    for capture, start in zip(processes, starts, strict=True):
        at, excess = capture.shared_excess
        first_fork = np.searchsorted(forks, np.concatenate([[0], start + at[:-1]])[: len(at)])
        found.append((np.minimum(start + at, np.append(forks, np.iinfo(np.int64).max)[first_fork]), excess))
    family = parents(processes)
    for number in sorted(range(len(processes)), key=starts.__getitem__):
        parent = family[number]
        if processes[number].process.started_by == "fork" and parent is not None and not len(found[number][0]):
            at, excess = found[parent]
            found[number] = at, np.minimum(excess, processes[number].resident.start_bytes)
    return found


def _less_shared(track: Track, at: Ints, excess: Ints) -> Track:
    """The track without what other processes count of the pages that it shares with them, from the first reading of that on."""
    if not len(at) or not len(track.at_ns):
        return track
    times = np.unique(np.concatenate([track.at_ns, at[(at >= track.at_ns[0]) & (at < track.end_ns)]]))
    held = track.bytes[np.searchsorted(track.at_ns, times, side="right") - 1]
    place = np.searchsorted(at, times, side="right")
    less = np.where(place > 0, excess[np.maximum(0, place - 1)], 0)
    return replace(track, at_ns=times, bytes=np.maximum(0, held - less), shares=True)


def _resident_track(at: Ints, held: Ints, span: tuple[int, int], bound: int | None) -> Track:
    end = max(span[1], int(at[-1])) if len(at) else span[1]
    bounds = None if bound is None else (np.array(span[:1], np.int64), np.array([bound], np.int64))
    return Track(at, held, end, bounds)


def _span(capture: Capture) -> tuple[int, int]:
    start = min(capture.process.started_unix_ns, 1 << 62)
    return start, start + min(capture.process.duration_ns, 1 << 61)


def _highest(tracks: Sequence[Track]) -> Instant | None:
    """The instant at which the sum of the last samples is highest."""
    tracks = [
        replace(track, end_ns=max(track.end_ns, int(track.at_ns[-1]) + 1)) for track in tracks if len(track.at_ns)
    ]
    if not tracks:
        return None
    at, total = _sum_over_time([(track.at_ns, track.bytes, track.end_ns) for track in tracks])
    best = int(np.argmax(total))
    instant = int(at[best])
    error = spacing = running = shared_once = 0
    for track in tracks:
        after = int(np.searchsorted(track.at_ns, instant, side="right"))
        if not after or instant >= track.end_ns:
            continue
        running += 1
        shared_once += track.shares
        if track.estimate is not None and instant >= track.estimate[0]:
            error += track.estimate[1]
        if after < len(track.at_ns) and int(track.at_ns[after - 1]) != instant:
            error += abs(int(track.bytes[after]) - int(track.bytes[after - 1]))
            spacing = max(spacing, int(track.at_ns[after]) - int(track.at_ns[after - 1]))
    bounds = [(*track.bounds, track.end_ns) for track in tracks if track.bounds is not None]
    at_most = None
    if len(bounds) == len(tracks):
        at_most = max(int(_sum_over_time(bounds)[1].max()), int(total[best]))
    return Instant(int(total[best]), error, at_most, instant, spacing, running, shared_once)


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
    """The bound plus two standard errors for sampled captures, whose figures are estimates."""
    if instant is None:
        return None
    variance = sum(capture.peak_error_bytes**2 for capture in captures)
    chance = 2 * math.ceil(math.sqrt(variance))
    at_most = None if instant.at_most_bytes is None else instant.at_most_bytes + chance
    return replace(instant, error_bytes=instant.error_bytes + chance, at_most_bytes=at_most)


# Families


def parents(captures: Sequence[Capture]) -> list[int | None]:
    """For each capture, the index of the capture of its parent process; None if there is none."""
    numbered: dict[tuple[object, str], list[int]] = {}
    for number, capture in enumerate(captures):
        numbered.setdefault((capture.header["boot_id"], str(capture.process.pid)), []).append(number)
    return [_parent(captures, numbered, number) for number in range(len(captures))]


def _parent(captures: Sequence[Capture], numbered: dict[tuple[object, str], list[int]], number: int) -> int | None:
    """`numbered` are the captures of each process number on each machine: a number may be used again. The program that a process executed
    is the child of the program that executed it."""
    child = captures[number]
    start = child.process.started_unix_ns
    header = child.header
    before = [
        other
        for other in numbered[header["boot_id"], str(child.process.pid)]
        if captures[other].header["process_start_ticks"] == header["process_start_ticks"]
        and captures[other].process.started_unix_ns < start
    ]
    if before and child.facts.get("started_by") == "exec":
        return max(before, key=lambda other: captures[other].process.started_unix_ns)
    for other in numbered.get((child.header["boot_id"], child.facts.get("ppid", "")), ()):
        if other == number:
            continue
        first, last = _span(captures[other])
        if (first < start or (first == start and other < number)) and start <= last:
            return other
    return None


def pairs(before: Sequence[Capture], after: Sequence[Capture]) -> list[tuple[Capture, Capture]]:
    """Pairs of processes of two runs: by equal rank and program, then by the order of their starts.

    Two single processes are a pair, whatever their names are.
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
