"""Computes the figures of an estimate from a trace: peaks, the holders at the peak, memory over time, and the memory
that a card must have."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from hiwater.contrib.torch.estimate.allocator import (
    SEGMENT_ROUNDING,
    Block,
    CachingAllocator,
    OutOfDeviceMemory,
    expands,
    rounded,
)
from hiwater.contrib.torch.estimate.trace import StepTrace

REMAINDERS = "unsplit remainders"
_POINTS = 240  # of the timeline


class StepReplay:
    """Replays the events of a trace on the model of the card's allocator or, without a card, as plain bytes."""

    def __init__(
        self, trace: StepTrace, is_card: bool, limit_bytes: int | None = None, *, is_most: bool = False
    ) -> None:  # fmt: skip
        self.trace = trace
        self.is_card = is_card
        self.is_most = is_most
        self.allocator = CachingAllocator(limit_bytes, is_expandable=expands(os.environ))
        self.alive: dict[int, int] = {}  # number -> bytes
        self._blocks: dict[int, Block] = {}
        self._plain_bytes = 0

    @property
    def allocated_bytes(self) -> int:
        return self.allocator.allocated_bytes if self.is_card else self._plain_bytes

    def run(self) -> Iterator[int]:
        """Replay the events, and yield the index after each. Raises OutOfDeviceMemory."""
        for index, event in enumerate(self.trace.events):
            if event >= 0:
                self._come(event)
            elif -1 - event in self.alive:
                self._go(-1 - event)
            yield index

    def finished(self) -> CachingAllocator:
        """The allocator after all events."""
        deque(self.run(), maxlen=0)
        return self.allocator

    def _come(self, number: int) -> None:
        storage = self.trace.storages[number]
        size = storage.size or (storage.most if self.is_most else 0)
        if size == 0 or (self.is_card and storage.category == "host"):
            return
        self.alive[number] = rounded(size) if self.is_card else size
        self._plain_bytes += self.alive[number]
        if self.is_card:
            self._blocks[number] = self.allocator.allocate(size, storage.stream)

    def _go(self, number: int) -> None:
        self._plain_bytes -= self.alive.pop(number)
        if self.is_card:
            self.allocator.free(self._blocks.pop(number))

    def categories(self) -> dict[str, int]:
        """Bytes by category; they sum to `allocated_bytes`."""
        sums: Counter[str] = Counter()
        for number, size in self.alive.items():
            sums[self._category(number)] += size
        if self.allocated_bytes > self._plain_bytes:
            sums[REMAINDERS] = self.allocated_bytes - self._plain_bytes
        return dict(sums.most_common())

    def _category(self, number: int) -> str:
        storage = self.trace.storages[number]
        return storage.category or ("recomputed activations" if storage.phase == "recompute" else "temporaries")

    def _name(self, number: int) -> str:
        """The name of a storage that no line of the user made."""
        category = self._category(number)
        return f"{category} of {self.trace.storages[number].phase}" if category == "temporaries" else category

    def reached_by(self) -> dict[str, Any]:
        """The newest request of at least 1 % of all: a smaller one may be the last, and is not what matters. If its
        line is a library's, the user's line that led there, too."""
        newest = [number for number in reversed(self.alive) if self.alive[number] * 100 >= self.allocated_bytes]
        number = next(iter(newest or reversed(self.alive)), None)
        if number is None:
            return _REACHED_BY_NOTHING
        storage = self.trace.storages[number]
        own = storage.place.own
        return {
            "reached_by": _line_data(self._line(number), storage.size),
            "called_by": None if own is None else _line_data(own, storage.size),
        }

    def _line(self, number: int) -> tuple[str, int, str]:
        """The line that requested a storage. What belongs to no line has its kind as the function."""
        place = self.trace.storages[number].place
        return place.innermost if place.line else ("", 0, self._name(number))

    def holders(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The holders of memory now, by module and by line, largest first."""
        modules: Counter[str] = Counter()
        lines: Counter[tuple[str, int, str]] = Counter()
        for number, size in self.alive.items():
            modules[self.trace.storages[number].place.module] += size
            lines[self._line(number)] += size
        return (
            [{"module": name, "bytes": size} for name, size in modules.most_common()],
            [_line_data(line, size) for line, size in lines.most_common()],
        )


def _line_data(line: tuple[str, int, str], size: int) -> dict[str, Any]:
    return dict(zip(("file", "line", "function"), line, strict=True)) | {"bytes": size}


_REACHED_BY_NOTHING = {"reached_by": _line_data(("", 0, "nothing"), 0), "called_by": None}


def figures(trace: StepTrace, is_card: bool) -> dict[str, Any]:
    """The figures that do not depend on the card's size, as data for `Estimate`."""
    peak_at, steps, instants = _sweep(trace, is_card)
    replay = StepReplay(trace, is_card)
    timeline = []
    at_peak: dict[str, Any] = {}
    for index in replay.run():
        if index in instants:
            phase_start = trace.phase_at(index)
            point = {
                "event": index,
                "step": phase_start.step,
                "phase": phase_start.phase,
                "bytes": replay.allocated_bytes,
            }
            timeline.append({**point, "categories": replay.categories()})
        if index == peak_at:
            modules, lines = replay.holders()
            at_peak = {
                "categories": replay.categories(),
                "modules": modules,
                "lines": lines,
                **replay.reached_by(),
                **_step_and_phase(trace, index),
            }
    peak = max((step["peak_allocated_bytes"] for step in steps), default=0)
    return {
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": replay.allocator.peak_reserved_bytes if is_card else None,
        "at_peak": at_peak
        or {
            "categories": {},
            "modules": [],
            "lines": [],
            **_REACHED_BY_NOTHING,
            "step": 0,
            "phase": "before",
        },
        "steps": steps,
        "timeline": timeline,
    }


def most(trace: StepTrace, is_card: bool) -> dict[str, int | None]:
    """The peaks with all that may be made, or None if nothing is in doubt."""
    if not is_card or not any(storage.most for storage in trace.storages):
        return {"most_allocated_bytes": None, "most_reserved_bytes": None}
    allocator = StepReplay(trace, is_card=True, is_most=True).finished()
    return {
        "most_allocated_bytes": allocator.peak_allocated_bytes,
        "most_reserved_bytes": allocator.peak_reserved_bytes,
    }


def _sweep(trace: StepTrace, is_card: bool) -> tuple[int, list[dict[str, Any]], set[int]]:
    """The event of the peak, the peaks of each step and its phases, and the events that the timeline shows."""
    replay = StepReplay(trace, is_card)
    width = max(1, len(trace.events) // _POINTS)
    highest: dict[int, tuple[int, int]] = {}  # interval of events -> (bytes, event)
    steps: dict[int, dict[str, Any]] = {}
    upcoming = deque(trace.phase_starts)
    phase_start, now = upcoming[0], 0

    def note_peaks() -> None:
        step = steps.setdefault(phase_start.step, {"step": phase_start.step, "peak_allocated_bytes": 0, "phases": {}})
        step["phases"][phase_start.phase] = max(now, step["phases"].get(phase_start.phase, 0))
        step["peak_allocated_bytes"] = max(now, step["peak_allocated_bytes"])
        step["peak_reserved_bytes"] = replay.allocator.peak_reserved_bytes if is_card else None

    for index in replay.run():
        while upcoming and upcoming[0].start <= index:
            phase_start = upcoming.popleft()
            note_peaks()  # a phase without events has the bytes of its start
        now = replay.allocated_bytes
        note_peaks()
        if now > highest.get(index // width, (-1, 0))[0]:
            highest[index // width] = (now, index)
    for phase_start in upcoming:  # noqa: B007 - note_peaks() reads it
        note_peaks()
    peak_at = max(highest.values(), default=(0, 0), key=lambda entry: (entry[0], -entry[1]))[1]
    return peak_at, list(steps.values()), {index for _, index in highest.values()} | {peak_at}


def _step_and_phase(trace: StepTrace, index: int) -> dict[str, Any]:
    phase_start = trace.phase_at(index)
    return {"step": phase_start.step, "phase": phase_start.phase}


def verdict(
    trace: StepTrace, peak_reserved_bytes: int, peak_allocated_bytes: int, available_bytes: int
) -> dict[str, Any]:
    """Whether the steps run with `available_bytes`, and the least bytes that they need, to 2 MiB.

    `margin_bytes` is what is left over; below zero, what is missing. `fits_only_by_retrying` says that the steps would
    reserve more than is available, but run because the allocator returns segments and requests memory again.
    """
    if peak_reserved_bytes <= available_bytes:
        return _verdict(True, False, peak_reserved_bytes, available_bytes)
    low, high = peak_allocated_bytes // SEGMENT_ROUNDING, -(-peak_reserved_bytes // SEGMENT_ROUNDING)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if runs_with(trace, middle * SEGMENT_ROUNDING) else (middle, high)
    needed = high * SEGMENT_ROUNDING
    fits = runs_with(trace, available_bytes)
    return _verdict(fits, fits, min(needed, available_bytes) if fits else needed, available_bytes)


def _verdict(fits: bool, by_retrying: bool, needed: int, available: int) -> dict[str, Any]:
    return {
        "fits": fits,
        "fits_only_by_retrying": by_retrying,
        "needed_bytes": needed,
        "margin_bytes": available - needed,
    }


def runs_with(trace: StepTrace, limit_bytes: int, *, is_most: bool = False) -> bool:
    """Whether the steps run on a card that gives up to `limit_bytes`."""
    try:
        StepReplay(trace, True, limit_bytes, is_most=is_most).finished()
    except OutOfDeviceMemory:
        return False
    return True
