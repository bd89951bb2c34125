"""The memory of this process's cgroup: all processes in it, with page cache, kernel memory and tmpfs: what a container's limit is about.

Peaks: v2 since Linux 6.12 starts `memory.peak` anew for one descriptor alone, so ours is exact and disturbs nobody. Where it cannot
(older kernels, v1, whose reset would be everybody's) the group's lifetime mark still tells when it moved: then the peak is exact,
otherwise what was seen is a lower bound.
"""

from __future__ import annotations

import os

from hiwater._os.cgroup_files import Group, find
from hiwater._os.kept_file import KeptFile
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits


class Cgroup(Meter):
    """Bytes charged to this process's cgroup, other processes included."""

    name = "cgroup"

    def __init__(self, group: Group | None = None) -> None:
        self._group = group
        self._current: KeptFile | None = None
        self._peak: KeptFile | None = None
        self._own_mark = False
        self._last_mark = self._last_now = 0

    @property
    def mark_only_rises(self) -> bool:
        """Whether the group's lifetime mark is all there is; known once it is open."""
        return not self._own_mark

    @property
    def traits(self) -> Traits:
        """Exact where the mark can be started anew for us alone, or moved during the scope."""
        version = self._group.version if self._group else 0
        own = f"memory.peak of cgroup v{version}, started anew for one descriptor"
        return Traits(
            self.name,
            own if self._own_mark else f"cgroup v{version} usage and its lifetime mark",
            "cgroup",
            exact=self._own_mark,
            reason="" if self._own_mark else "the group's mark cannot be started anew for one observer here",
            resets_peak=self._own_mark,
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
        self._peak, self._own_mark = self._open_peak(self._group)
        self._last_mark = int(self._peak.read(32)) if self._peak else 0

    def now(self) -> int:
        """Return bytes charged to the group now; raises OSError."""
        assert self._current is not None
        return int(self._current.read(32))

    def read_and_reset(self) -> Reading:
        """Return (charged now, the most since the last reset, whether that misses nothing)."""
        now = self.now()
        mark = int(self._peak.read(32)) if self._peak else 0
        if self._own_mark and self._peak is not None:
            os.pwrite(self._peak.descriptor(), b"reset\n", 0)
            return now, max(now, mark), True
        moved = mark > self._last_mark
        peak = mark if moved else max(now, self._last_now)
        self._last_mark, self._last_now = mark, now
        return now, max(now, peak), moved

    @staticmethod
    def _open_peak(group: Group) -> tuple[KeptFile | None, bool]:
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
