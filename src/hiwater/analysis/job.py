"""A job: the processes of a cluster or of a launcher, as one. How uneven their peaks are, why, and what phases of each
name cost over all of them.

Peaks are compared without memory that was never touched: a library that reserves address space does so in each process,
and none of it is in RAM. A figure of a phase is that of its whole process: phases that overlap in one process, as tasks
of several threads do, see each other's memory.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from hiwater.analysis.diff import compare_lines
from hiwater.analysis.user_lines import UserLine, rank_lines
from hiwater.capture import Capture, ScopeSpan
from hiwater.capture.paths import Frame
from hiwater.capture.tables import whole_number
from hiwater.errors import HiwaterError

MOST_PHASES = 40
"""The number of names of phases that are told, those that cost most first."""
_OUTLIERS_EXPLAINED = 3
_FAR = 1.5  # times the median
_APART_BYTES = 1 << 20  # less than this is no outlier
_OF_PEAK = 0.9  # results that a phase left, and a little more, may be the process's peak
_PLACES_FOUND = 10  # names of phases whose highest moment is looked into
_CAUSES = 3
_COMPARED = 200  # lines whose allocated bytes grew most: the causes are among them


def is_job(captures: Sequence[Capture]) -> bool:
    """Whether these are processes of a job, and not a program with its children."""
    return len(captures) > 1 and any(one.facts.get("engine") or one.facts.get("rank") for one in captures)


def used_bytes(capture: Capture) -> int:
    """The allocated peak without what was never touched: no more than the highest resident memory, where no
    residency snapshot tells."""
    resident = capture.resident.program_peak_bytes
    used = capture.peak_bytes - capture.peak_untouched_bytes
    return min(used, resident) if resident else used


def worker_name(capture: Capture) -> str:
    """The engine's name of the process, "" if it has none."""
    return capture.facts.get("worker", "")


def limit_share(capture: Capture) -> float | None:
    """The highest resident memory as a part of the limit that is nearest to it: of the engine, of address space
    (used addresses), or of the cgroup (all its processes); None without a limit."""
    shares = []
    for one in capture.pressure:
        for used, limit in (
            (one.address_space_bytes, one.address_space_limit),
            (one.cgroup_bytes, one.cgroup_limit),
        ):
            if used is not None and limit:
                shares.append(used / limit)
    if allowed := whole_number(capture.facts.get("worker_limit_bytes", "")):
        shares.append(capture.resident.program_peak_bytes / allowed)
    return max(shares, default=None)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The engine's own figures of a worker, when the memory that it saw was highest: of the process (resident), of
    results in memory (managed), of what is neither (unmanaged), and of results on disk (spilled)."""

    process_bytes: int
    managed_bytes: int
    unmanaged_bytes: int
    spilled_bytes: int


def engine_memory(capture: Capture) -> EngineMemory | None:
    """None for an engine that has no figures of its own."""
    try:
        own = json.loads(capture.facts["engine_memory"])
        figures = [whole_number(str(own[name])) for name in ("process_bytes", "managed_bytes", "spilled_bytes")]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    process, managed, spilled = figures
    if process is None or managed is None or spilled is None:
        return None
    return EngineMemory(process, managed, max(0, process - managed), spilled)


def last_line(capture: Capture) -> UserLine | None:
    """The line that held most when the capture ended: what is known of a process that was killed."""
    if capture.is_timeline:
        return None
    return rank_lines(capture.tables, capture.end.holdings()).headline


@dataclass(frozen=True, slots=True)
class OutlierCause:
    """A line that holds `more_bytes` than in the median process, at the peaks, without what was never touched."""

    frame: Frame
    more_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Outlier:
    """A process whose peak is far above the median: `times` the median. `causes` are the lines that hold more than
    in `median`, most first."""

    capture: Capture
    median: Capture
    times: float
    phase: str
    causes: tuple[OutlierCause, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseCost:
    """The phases of one name over all processes. A rise is the highest allocated size during the phase above that at
    its start.

    `median_rise_bytes` and `highest_rise_bytes` are over the `count` phases that ended. `kept_bytes` is what phases of
    this name kept at their ends, in the process where that is most. `worst` is that process if it kept more than any
    phase rose, else the one with the highest rise. `top` is the line that held most at the highest moment of the worst
    phase; None if it was not looked for.
    """

    name: str
    count: int
    unfinished: int
    processes: int
    median_rise_bytes: int
    highest_rise_bytes: int
    highest_peak_bytes: int
    kept_bytes: int
    worst: Capture
    worst_phase: ScopeSpan
    top: UserLine | None

    @property
    def cost_bytes(self) -> int:
        """What orders the names."""
        return max(self.highest_rise_bytes, self.kept_bytes)


@dataclass(frozen=True)
class Job:
    """The captures of a job, seen as one."""

    captures: Sequence[Capture]

    @cached_property
    def recorded(self) -> list[Capture]:
        """The processes with allocations, the highest peak first, by `used_bytes()`."""
        known = [one for one in self.captures if not one.is_timeline and one.device is None]
        return sorted(known, key=lambda one: -used_bytes(one))

    @cached_property
    def median(self) -> Capture | None:
        """The process with the median peak: of an even number, the lower of the two in the middle."""
        return self.recorded[len(self.recorded) // 2] if self.recorded else None

    @property
    def median_bytes(self) -> int:
        """The peak of the median process."""
        return 0 if self.median is None else max(0, used_bytes(self.median))

    @property
    def highest_bytes(self) -> int:
        """The highest peak."""
        return max(0, used_bytes(self.recorded[0])) if self.recorded else 0

    @property
    def highest_untouched_bytes(self) -> int:
        """The most that one process had allocated at its peak and never touched: it is in no peak here."""
        return max((one.peak_untouched_bytes for one in self.recorded), default=0)

    @property
    def skew(self) -> float | None:
        """The highest peak over the median one; None if that is 0, or for fewer than three processes."""
        if len(self.recorded) < 3 or not self.median_bytes:
            return None
        return self.highest_bytes / self.median_bytes

    @cached_property
    def outliers(self) -> list[Outlier]:
        """The processes far above the median, at most three, each explained by a comparison with the median process."""
        if self.median is None or self.skew is None:
            return []
        least = max(_FAR * self.median_bytes, self.median_bytes + _APART_BYTES)
        far = [one for one in self.recorded if used_bytes(one) > least][:_OUTLIERS_EXPLAINED]
        return [_explained(one, self.median, used_bytes(one) / self.median_bytes) for one in far]

    @cached_property
    def phases(self) -> list[PhaseCost]:
        """The phases by name, those that cost most first, at most MOST_PHASES."""
        of_name: dict[str, list[tuple[Capture, ScopeSpan]]] = {}
        for capture in self.recorded:
            for scope in capture.scopes:
                if scope.allocated_peak_bytes is not None and scope.allocated_start_bytes is not None:
                    of_name.setdefault(scope.name, []).append((capture, scope))
        costs = sorted((_cost(name, found) for name, found in of_name.items()), key=lambda one: -one.cost_bytes)
        return [_with_place(one) if place < _PLACES_FOUND else one for place, one in enumerate(costs[:MOST_PHASES])]

    @cached_property
    def phases_not_kept(self) -> int:
        """The number of phases that are in no figure: each capture keeps its last 10,000."""
        return sum(max(0, int(one.header.get("scopes", 0)) - len(one.scopes)) for one in self.recorded if one.scopes)


def _explained(capture: Capture, median: Capture, times: float) -> Outlier:
    try:
        causes = tuple(_causes(capture, median))
    except HiwaterError:
        causes = ()  # a capture that contradicts itself: its report says so
    # Both are of the whole process.
    highest = max(capture.scopes, key=lambda one: (one.allocated_peak_bytes or 0, _rise(one)), default=None)
    if highest is not None and (highest.allocated_peak_bytes or 0) < _OF_PEAK * capture.peak_bytes:
        highest = None
    return Outlier(capture, median, times, "" if highest is None else highest.name, causes)


def _causes(capture: Capture, median: Capture) -> list[OutlierCause]:
    used, before = _used_by_line(capture), _used_by_line(median)
    grew = islice(compare_lines(median, capture).grew, _COMPARED)
    # A line may have other frames in each.
    causes = [OutlierCause(one.frames[-1], _used_at(one.after, used) - _used_at(one.before, before)) for one in grew]
    return sorted((one for one in causes if one.more_bytes > 0), key=lambda one: -one.more_bytes)[:_CAUSES]


def _used_by_line(capture: Capture) -> dict[Frame, int]:
    """What each line used at the peak."""
    most, found = used_bytes(capture), dict[Frame, int]()
    for row in rank_lines(capture.tables, capture.peak.holdings()).rows:
        found[row.frame] = min(most, found.get(row.frame, 0) + row.bytes)
    return found


def _used_at(frames: Sequence[Frame], used: dict[Frame, int]) -> int:
    return used.get(frames[-1], 0) if frames else 0


def _rise(scope: ScopeSpan) -> int:
    return max(0, (scope.allocated_peak_bytes or 0) - (scope.allocated_start_bytes or 0))


def _cost(name: str, found: Sequence[tuple[Capture, ScopeSpan]]) -> PhaseCost:
    capture, worst = max(found, key=lambda one: _rise(one[1]))
    kept: dict[int, int] = {}
    keeper: dict[int, Capture] = {}
    for one, scope in found:
        if scope.allocated_end_bytes is not None:
            kept[id(one)] = kept.get(id(one), 0) + scope.allocated_end_bytes - (scope.allocated_start_bytes or 0)
            keeper[id(one)] = one
    most = max(kept, key=lambda key: kept[key], default=None)
    kept_bytes = 0 if most is None else max(0, kept[most])
    if most is not None and kept_bytes > _rise(worst):
        capture = keeper[most]
        worst = max((scope for one, scope in found if one is capture), key=lambda one: one.allocated_peak_bytes or 0)
    ended = [scope for _, scope in found if scope.allocated_end_bytes is not None]
    return PhaseCost(
        name, len(ended), len(found) - len(ended), len({id(one) for one, _ in found}),
        int(statistics.median([_rise(scope) for scope in ended or [worst]])),
        max(_rise(scope) for _, scope in found),
        max(scope.allocated_peak_bytes or 0 for _, scope in found),
        kept_bytes, capture, worst, None,
    )  # fmt: skip


def _with_place(cost: PhaseCost) -> PhaseCost:
    """The same, with the line that held most at the highest moment of the worst phase."""
    capture, phase = cost.worst, cost.worst_phase
    end = phase.end_ns if phase.end_ns > phase.start_ns else capture.process.duration_ns
    try:
        held = capture.window(phase.start_ns / 1e9, end / 1e9)
        top = rank_lines(capture.tables, held.holdings()).headline
    except HiwaterError:
        return cost
    return replace(cost, top=top)
