"""The memory of all processes of one machine at the same instant.

Peaks cannot be added, because each process has its peak at a different time. Figures of one instant can be added if the
processes share a wall clock. Processes of one machine (one boot) do.

A sum uses what each process held at the instant, as far as its readings and slices tell (tracks.py, sharing.py).
`error_bytes` is what is not known of that. `at_most_bytes` is a bound: in a slice of time no process had more than the
peak of the slice, which is recorded exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hiwater.capture import families, sharing, tracks
from hiwater.capture.model import Capture
from hiwater.capture.paths import Ints
from hiwater.capture.run_index import ShortProcess
from hiwater.capture.tracks import Track, sum_of_steps

_NEARLY, _MOST_CANDIDATES = 1024, 64


@dataclass(frozen=True, slots=True)
class Instant:
    """The highest sum of the processes of one machine at the same instant.

    `at_unix_ns` is wall clock time. `processes` is the number of processes that ran then. `spacing_ns` is the longest
    time between the moments on both sides of the instant at which a process was known. `at_most_bytes` is None if a
    process has only samples.
    """

    bytes: int
    error_bytes: int
    at_most_bytes: int | None
    at_unix_ns: int
    spacing_ns: int
    processes: int
    shared_once: int = 0
    """The number of the processes whose shared pages count in parts (PSS), and so once in the sum."""


class Machine:
    """One machine from one boot to the next, its captures, and their sums. A figure is None if no capture has it."""

    def __init__(self, captures: Sequence[Capture], short: Sequence[ShortProcess] = ()) -> None:
        """Of the `short` processes only peaks are known: they count in the upper bounds alone."""
        self.captures = tuple(captures)
        self._short = short

    @cached_property
    def name(self) -> str:
        """The names that its processes know it by: a container has one of its own."""
        names = dict.fromkeys(capture.facts.get("host", "") for capture in self.captures)
        return ", ".join(name for name in names if name) or "this machine"

    @property
    def is_of_several(self) -> bool:
        """Whether there is anything to add up."""
        return len(self.captures) > 1

    @cached_property
    def allocated_tracks(self) -> list[tuple[Capture, Track]]:
        """For each process, what it had allocated over time."""
        return [(capture, tracks.allocated(capture)) for capture in self._processes if not capture.is_timeline]

    @cached_property
    def allocated(self) -> Instant | None:
        """The highest sum of allocated bytes. Of sampled captures, whose figures are estimates, with two standard
        errors."""
        small = [tracks.of_short(one, one.peak_bytes) for one in self._short]
        instant = _highest([track for _, track in self.allocated_tracks], small)
        if instant is None:
            return None
        variance = sum(capture.peak_error_bytes**2 for capture, _ in self.allocated_tracks)
        chance = 2 * math.ceil(math.sqrt(variance))
        at_most = None if instant.at_most_bytes is None else instant.at_most_bytes + chance
        return replace(instant, error_bytes=instant.error_bytes + chance, at_most_bytes=at_most)

    @cached_property
    def resident_tracks(self) -> list[tuple[Capture, Track]]:
        """For each process that is known, its resident memory over time without hiwater's overhead."""
        spans: dict[int, list[tuple[Capture, int, int]]] = {}
        for capture in self._processes:
            spans.setdefault(capture.process.pid, []).append((capture, *tracks.span(capture)))
        related = {
            one
            for number, parent in enumerate(self._parents)
            if parent is not None and self._processes[number].process.started_by == "fork"
            for one in (number, parent)
        }
        found = []
        starting = tracks.starting(self._processes)
        for number, capture in enumerate(self._processes):
            track = tracks.resident(capture, self._seen[number], starting[number])
            shares = len(self._seen[number].at_ns) > 0 or number in related
            found += [] if track is None else [(capture, replace(track, shares=shares))]
            found += [(capture, track) for track in tracks.watched(capture, spans)]
        return found

    @cached_property
    def counted_twice(self) -> list[Track]:
        """What the sum of these is too high by, as negative bytes: pages that several processes have."""
        return sharing.counted_twice(self._processes, self._parents, self._seen)

    @cached_property
    def resident(self) -> Instant | None:
        """The highest sum of resident memory, without hiwater's overhead."""
        small = [tracks.of_short(one, one.resident_peak_bytes) for one in self._short]
        return _highest([*(track for _, track in self.resident_tracks), *self.counted_twice], small)

    @cached_property
    def allocated_over_time(self) -> tuple[Ints, Ints]:
        """Wall clock times, and what the processes had allocated from each on."""
        return sum_of_steps([track.lasting().steps for _, track in self.allocated_tracks])

    @cached_property
    def _parents(self) -> list[int | None]:
        return families.parents(self._processes)

    @cached_property
    def _seen(self) -> list[tracks.Seen]:
        return tracks.seen_from_outside(self._processes)

    @cached_property
    def _processes(self) -> list[Capture]:
        """Each recording once: of its snapshots, the one with most data."""
        longest: dict[tuple[int, int, int], Capture] = {}
        for capture in self.captures:
            header = capture.header
            key = (header["pid"], header["process_start_ticks"], header["started_unix_ns"])
            if key not in longest or capture.process.duration_ns > longest[key].process.duration_ns:
                longest[key] = capture
        return list(longest.values())


def machines(captures: Iterable[Capture], short: Sequence[ShortProcess] = ()) -> tuple[Machine, ...]:
    """The machines of these captures, in the order of their first capture."""
    of_machine: dict[tuple[str, str], list[Capture]] = {}
    for capture in captures:
        boot = capture.header["boot_id"].decode("ascii", "replace")
        # A container has a name of its own and the machine's clock and memory: one boot is one machine.
        of_machine.setdefault((boot, "" if boot else capture.facts.get("host", "")), []).append(capture)
    found = []
    for members in of_machine.values():
        runs = {capture.facts.get("run_id", "") for capture in members}
        found.append(Machine(members, [one for one in short if one.run in runs]))
    return tuple(found)


def _highest(found: Sequence[Track], small: Sequence[Track]) -> Instant | None:
    """The instant at which the sum is highest; of those at which it is nearly so, the one of which most is known. Of
    the processes of `small` only bounds are known."""
    known = [track.lasting() for track in found or small if len(track.at_ns)]
    if not known:
        return None
    at, total = sum_of_steps([track.steps for track in known])
    most = int(total.max())
    nearly = np.flatnonzero(total >= most - most // _NEARLY)
    nearly = nearly[np.argsort(-total[nearly], kind="stable")[:_MOST_CANDIDATES]]
    candidates = [_instant(known, int(at[place]), int(total[place])) for place in nearly]
    best = min(candidates, key=lambda one: one.error_bytes + most - one.bytes)
    others = sum(int(one.at_ns[0]) <= best.at_unix_ns < one.end_ns for one in small) if found else 0
    every = [*known, *small] if found else known
    bounds = [(*track.bounds, track.end_ns) for track in every if track.bounds is not None]
    at_most = max(int(sum_of_steps(bounds)[1].max()), most) if len(bounds) == len(every) else None
    # Between two moments of a process it may have been what it was at either, while the others held most.
    possible = int(sum_of_steps([track.highest_steps for track in known])[1].max())
    possible = possible if at_most is None else min(possible, at_most)
    # At some instant (the times are the same) they surely held this much, whatever is not known of the best one.
    surely = int(sum_of_steps([track.lowest_steps for track in known])[1].max())
    lower = min(best.error_bytes + most - best.bytes, best.bytes - surely)
    error = max(lower, possible - best.bytes)
    return replace(best, error_bytes=error, at_most_bytes=at_most, processes=best.processes + others)


def _instant(found: Sequence[Track], at_ns: int, total: int) -> Instant:
    """What is known of one instant.

    A track is known at its own moments; between two of them it may already be what it is at the next. Where the highest
    moment of a slice stands, the process may have come to it later in the slice: then either it held less at the
    instant, or the others held later what counts.
    """
    error = spacing = running = shared_once = rise = until = 0
    places = []
    for track in found:
        place = int(np.searchsorted(track.at_ns, at_ns, side="right")) - 1
        if place < 0 or at_ns >= track.end_ns:
            continue
        running += track.is_process
        shared_once += track.shares
        places.append((track, place))
        following = min(place + 1, len(track.at_ns) - 1)
        if track.unmeasured is not None:
            error += int(track.unmeasured[place])
        if track.is_process and following > place and int(track.at_ns[place]) != at_ns:
            error += abs(int(track.bytes[following]) - int(track.bytes[place]))
            spacing = max(spacing, int(track.at_ns[following] - track.at_ns[place]))
        if track.least is not None:
            risen = track.bytes[place:] - track.least[place:]
            rise += int(risen[0])
            # At times at which the excess alone has changed, the process may still come to its highest moment.
            settled = place + int(np.append(np.flatnonzero(risen != risen[0]), len(risen) - 1)[0])
            until = max(until, int(track.at_ns[settled]) if risen[0] else 0)
    fallen = 0
    for track, place in places if rise else ():
        behind = int(np.searchsorted(track.at_ns, until, side="right")) + 1
        lowest = int(track.bytes[place:behind].min())
        fallen += int(track.bytes[place]) - (0 if until >= track.end_ns else lowest)
    return Instant(total, error + min(rise, fallen), None, at_ns, spacing, running, shared_once)
