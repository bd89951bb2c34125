"""Samples grouped by tick: the memory of every watched process at one moment."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from hiwater.sampling.watcher import Watched

    # CLOCK_MONOTONIC ns, bytes of the target, and (pid, bytes) of each child, in the order they appeared.
    Row: TypeAlias = tuple[int, int, tuple[tuple[int, int], ...]]


class Ticks:
    """A sink for watchers that passes on one row for each tick; a child that lived between two ticks is in the
    second."""

    def __init__(self, take: Callable[[Row], object]) -> None:
        self._take = take
        self._target = 0
        self._children: dict[int, tuple[int, int]] = {}

    def appeared(self, process: Watched) -> None:
        pass

    def ended(self, process: Watched) -> None:
        pass

    def sampled(self, process: Watched, at_ns: int, resident_bytes: int) -> None:  # noqa: ARG002 - a row has one time
        if process.number == 0:
            self._target = max(self._target, resident_bytes)
            return
        _, before = self._children.get(process.number, (0, 0))
        self._children[process.number] = process.pid, max(before, resident_bytes)

    def end_of_tick(self, now: int) -> bool:
        """Pass on the row of this tick; the return value False lets the watcher continue."""
        if self._target:
            self._take((now, self._target, tuple(self._children.values())))
        self._target = 0
        self._children.clear()
        return False


def wall_seconds(at_ns: int) -> float:
    """Seconds since 1970 for a time on CLOCK_MONOTONIC."""
    return (time.time_ns() - time.monotonic_ns() + at_ns) / 1e9
