"""One device's marks, shared by all who want a peak from them: hiwater's meters, and the program, which must not notice.

A library has one way to start peaks anew, for all statistics of a device at once. So each time, every peak that is about to be wiped out is
noted: for each meter that is open, until it asks, and for the program, until it starts its peaks anew itself.
"""

from __future__ import annotations

import threading

from hiwater.errors import MeterUnavailable
from hiwater.meters.devices.base import flat_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hiwater.meters.base import Reading

    Watcher = Callable[[dict[str, tuple[int, int]], bool], None]


class SharedPeaks:
    """Reads and resets the peaks of one device. `read` gives (now, peak) of all statistics that have one; `reset` starts those anew, all at once.

    What lies between the two calls is a hole of some microseconds: a spike of another thread in it is in no interval.
    """

    def __init__(self, read: Callable[[], dict[str, tuple[int, int]]], reset: Callable[[], object]) -> None:
        self._read = read
        self._reset = reset
        self._lock = threading.RLock()  # around our own notes only, never around the library
        self._now: dict[str, int] = {}
        self._pending: dict[str, int] = {}  # by statistic that a meter is open for: the highest since it last asked
        self._fresh: set[str] = set()  # those that have not been asked for since the last reading
        self._disturbed: set[str] = set()
        self._floor: dict[str, int] = {}  # no mark can be lower unless somebody else started it anew
        self._for_program: dict[str, int] = {}
        self._watchers: list[Watcher] = []

    @property
    def in_use(self) -> bool:
        """Whether a meter is open, or somebody watches."""
        return bool(self._pending or self._watchers)

    @property
    def owes(self) -> bool:
        """Whether the program may see a lower peak than it should, were it not told what was noted."""
        return any(noted > self._floor.get(name, 0) for name, noted in self._for_program.items())

    def noted_for_program(self, statistic: str) -> int:
        """The highest that was wiped out of a statistic's mark since the program last started it anew."""
        return self._for_program.get(statistic, 0)

    def open(self, statistic: str) -> None:
        """Begin to keep the peaks of a statistic; its first interval is that since the mark began. Raises MeterUnavailable for an unknown name."""
        found = self._read()
        if statistic not in found:
            raise MeterUnavailable(
                f"there is no statistic {statistic!r} with a peak here", f"choose from {', '.join(found) or 'nothing'}"
            )
        with self._lock:
            self._pending.setdefault(statistic, 0)
            self._fresh.discard(statistic)

    def close(self, statistic: str) -> None:
        """Keep the peaks of a statistic no longer."""
        with self._lock:
            self._pending.pop(statistic, None)
            self._fresh.discard(statistic)
            self._disturbed.discard(statistic)

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every reading from the next one on: all statistics that have a peak, the peaks being those since the reading
        before, and whether somebody else started them anew meanwhile.
        """
        with self._lock:
            self._watchers = [*self._watchers, watcher]

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no longer."""
        with self._lock:
            self._watchers = [each for each in self._watchers if each != watcher]

    def collect(self) -> None:
        """Take a reading, for those who watch."""
        self._collect()

    def read_and_reset(self, statistic: str) -> Reading:
        """Return (now, the most since this statistic was last reset, whether nobody else started the mark anew).

        One reading of the library serves all meters that are read together.
        """
        if statistic not in self._fresh:
            self._collect()
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
        """Read one statistic, and leave its mark alone. Raises MeterUnavailable when it is gone."""
        found = self._read().get(statistic)
        if found is None:
            raise MeterUnavailable(f"there is no statistic {statistic!r} here", "see `hiwater doctor`")
        return found[0]

    def program_resets(self) -> None:
        """The program starts its peaks anew: for the meters that is one more reading."""
        if self.in_use:
            self._collect()
        else:
            self._reset()
        with self._lock:
            self._for_program.clear()

    def forked(self) -> None:
        """In a forked child: another thread of the parent's may have held the lock."""
        self._lock = threading.RLock()

    def show_program(self, nested: Any) -> None:
        """Put into statistics that the program asked for (nested mappings, changed in place) the peaks as they were without us."""
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

    def _collect(self) -> None:
        found = self._read()
        with self._lock:
            floor, noted = self._floor, self._for_program
            foreign = any(both[1] < floor.get(name, 0) for name, both in found.items())
            if foreign:  # whoever did it wanted the program's peaks to begin there
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
        self._reset()  # after the note: a thread that asks in between is told the higher of the two
