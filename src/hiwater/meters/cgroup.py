"""The memory of this process's cgroup: all its processes, page cache, kernel memory and tmpfs. A container's limit
applies to this sum.

Peaks: since Linux 6.12, v2 resets `memory.peak` for one descriptor alone, so our peak is exact and disturbs no other
reader. Older kernels cannot do this, and in v1 a reset would affect all readers. There we read the group's lifetime
high-water mark: if it rose, the peak is exact; otherwise the highest reading is a lower bound.
"""

from __future__ import annotations

import os

from hiwater._os.cgroup_files import MemoryCgroup, find
from hiwater._os.kept_file import KeptFile
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits


class Cgroup(Meter):
    """Bytes charged to this process's cgroup, other processes included."""

    name = "cgroup"

    def __init__(self, group: MemoryCgroup | None = None) -> None:
        self._group = group
        self._current: KeptFile | None = None
        self._peak: KeptFile | None = None
        self._resets_peak = False
        self._last_peak = self._last_now = 0

    @property
    def has_lifetime_peak(self) -> bool:
        """Whether only the group's lifetime high-water mark is available; known once the meter is open."""
        return not self._resets_peak

    @property
    def traits(self) -> Traits:
        """Exact where the peak can be reset for one descriptor, or rose during the scope."""
        version = self._group.version if self._group else 0
        resettable = f"memory.peak of cgroup v{version}, reset for one descriptor"
        return Traits(
            self.name,
            resettable if self._resets_peak else f"cgroup v{version} usage and its lifetime high-water mark",
            "cgroup",
            exact=self._resets_peak,
            reason="" if self._resets_peak else "this kernel cannot reset the group's peak for one reader",
            resets_peak=self._resets_peak,
            cost_us=4,
        )

    def open(self) -> None:
        """Raises MeterUnavailable where there is no memory cgroup to read."""
        self._group = self._group or find()
        self._current = KeptFile(self._group.current)
        try:
            self._last_now = self.now()
        except OSError as error:
            raise MeterUnavailable(f"the cgroup's memory cannot be read ({error})", "see `hiwater doctor`") from error
        self._peak, self._resets_peak = self._open_peak(self._group)
        self._last_peak = int(self._peak.read(32)) if self._peak else 0

    def now(self) -> int:
        """Return bytes charged to the group now; raises OSError."""
        assert self._current is not None
        return int(self._current.read(32))

    def read_and_reset(self) -> Reading:
        """Return (bytes charged now, their peak since the last reset, whether that peak is exact)."""
        now = self.now()
        kernel_peak = int(self._peak.read(32)) if self._peak else 0
        if self._resets_peak and self._peak is not None:
            os.pwrite(self._peak.descriptor(), b"reset\n", 0)
            return now, max(now, kernel_peak), True
        rose = kernel_peak > self._last_peak
        peak = kernel_peak if rose else max(now, self._last_now)
        self._last_peak, self._last_now = kernel_peak, now
        return now, max(now, peak), rose

    @staticmethod
    def _open_peak(group: MemoryCgroup) -> tuple[KeptFile | None, bool]:
        if group.version == 2:
            mine = KeptFile(group.peak, os.O_RDWR)
            try:
                os.pwrite(mine.descriptor(), b"reset\n", 0)
            except OSError:
                mine.close()
            else:
                return mine, True
        shared = KeptFile(group.peak)
        try:
            int(shared.read(32))
        except (OSError, ValueError):
            return None, False
        return shared, False
