"""The peaks of one device, shared by hiwater's meters and the program, which must not see a difference.

A library can only reset the peaks of all statistics of a device at once. So before each reset, every peak is noted: for
each open meter, until its next reading, and for the program, until the program resets its peaks.
"""

from __future__ import annotations

import threading

from hiwater.errors import MeterUnavailable
from hiwater.meters.devices.statistics import flat_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hiwater.meters.base import Reading

    Watcher = Callable[[dict[str, tuple[int, int]], bool], None]


class SharedPeaks:
    """Reads and resets the peaks of one device. `read` returns (now, peak) of all statistics that have a peak; `reset`
    resets all of them.

    Some microseconds pass between the two calls: a peak of another thread in this gap is in no interval.
    """

    def __init__(self, read: Callable[[], dict[str, tuple[int, int]]], reset: Callable[[], object]) -> None:
        self._read = read
        self._reset = reset
        self._lock = threading.RLock()  # around our notes only, never around calls of the library
        self._now: dict[str, int] = {}
        self._pending: dict[str, int] = {}  # by statistic with an open meter: the peak since the meter's last reading
        self._fresh: set[str] = set()  # statistics that no meter has read since the last collection
        self._disturbed: set[str] = set()
        self._floor: dict[str, int] = {}  # a peak below this was reset by something else
        self._for_program: dict[str, int] = {}
        self._watchers: list[Watcher] = []

    @property
    def in_use(self) -> bool:
        """Whether a meter is open, or a watcher is registered."""
        return bool(self._pending or self._watchers)

    @property
    def owes(self) -> bool:
        """Whether the program would see a peak that is too low, without our correction."""
        return any(noted > self._floor.get(name, 0) for name, noted in self._for_program.items())

    def noted_for_program(self, statistic: str) -> int:
        """The highest peak of a statistic that we have reset since the program's last reset."""
        return self._for_program.get(statistic, 0)

    def open(self, statistic: str) -> None:
        """Begin to keep the peaks of a statistic; its first interval begins at the library's last reset. Raises
        MeterUnavailable for an unknown name."""
        found = self._read()
        if statistic not in found:
            raise MeterUnavailable(
                f"there is no statistic {statistic!r} with a peak here", f"choose from {', '.join(found) or 'nothing'}"
            )
        with self._lock:
            self._pending.setdefault(statistic, 0)
            self._fresh.discard(statistic)

    def close(self, statistic: str) -> None:
        """Stop keeping the peaks of a statistic."""
        with self._lock:
            self._pending.pop(statistic, None)
            self._fresh.discard(statistic)
            self._disturbed.discard(statistic)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` at every reading from now on, with (now, peak since the reading before) of all statistics that
        have a peak, and whether something else reset them in between.
        """
        with self._lock:
            self._watchers = [*self._watchers, watcher]

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling `watcher`."""
        with self._lock:
            self._watchers = [each for each in self._watchers if each != watcher]

    def read_and_reset(self, statistic: str) -> Reading:
        """Return (now, peak since the last reset of this statistic, whether nothing else reset it).

        Meters that are read at the same time share one reading of the library.
        """
        if statistic not in self._fresh:
            self.collect()
            self._fresh = set(self._pending)
        with self._lock:
            self._fresh.discard(statistic)
            if statistic not in self._now:
                raise MeterUnavailable(f"{statistic} is no longer among the statistics", "see `hiwater doctor`")
            now = self._now[statistic]
            peak = max(now, self._pending.get(statistic, 0))
            self._pending[statistic] = 0
            intact = statistic not in self._disturbed
            self._disturbed.discard(statistic)
        return now, peak, intact

    def now(self, statistic: str) -> int:
        """Read one statistic without a reset. Raises MeterUnavailable when it no longer exists."""
        found = self._read().get(statistic)
        if found is None:
            raise MeterUnavailable(f"there is no statistic {statistic!r} here", "see `hiwater doctor`")
        return found[0]

    def program_resets(self) -> None:
        """The program resets its peaks: take one more reading for the meters."""
        if self.in_use:
            self.collect()
        else:
            self._reset()
        with self._lock:
            self._for_program.clear()

    def forked(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may have locked it."""
        self._lock = threading.RLock()

    def show_program(self, nested: Any) -> None:
        """Correct the peaks in statistics for the program (nested mappings, changed in place): as they would be
        without our resets."""
        with self._lock:
            self._raise_peaks(nested, "")

    def _raise_peaks(self, nested: Any, before: str) -> None:
        for key, value in nested.items():
            if not isinstance(value, dict):
                continue
            path = before + flat_name(key)
            if "peak" in value:
                self._floor[path] = max(self._floor.get(path, 0), value["peak"])
                value["peak"] = max(value["peak"], self._for_program.get(path, 0))
            else:
                self._raise_peaks(value, f"{path}.")

    def collect(self) -> None:
        """Take a reading, note its peaks for the meters and the program, tell the watchers of it, and reset the
        peaks."""
        found = self._read()
        with self._lock:
            floor, noted = self._floor, self._for_program
            foreign = any(both[1] < floor.get(name, 0) for name, both in found.items())
            if foreign:  # such a reset is meant for the program's peaks
                self._disturbed.update(self._pending)
                noted.clear()
            for name, (_, peak) in found.items():
                if peak > noted.get(name, -1):
                    noted[name] = peak
            for name in self._pending.keys() & found.keys():
                self._pending[name] = max(self._pending[name], found[name][1])
            self._now = {name: both[0] for name, both in found.items()}
            self._floor = self._now.copy()
            watchers = self._watchers
        for watcher in watchers:
            watcher(found, foreign)
        self._reset()  # after the note: a thread that reads in between gets the higher of the two
