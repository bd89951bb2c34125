"""This process and all its descendants. The figure is a sum of PSS, which counts a page shared by five processes
once; a sum of RSS counts it five times. For a process whose PSS may not be read, the sum has its RSS, and the figure
says so."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hiwater._os import processes
from hiwater.errors import ProcessNotReadable
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits


@dataclass(frozen=True, slots=True)
class TreeReading:
    """The memory of a process tree, as a sum."""

    bytes: int
    processes: int
    by_resident: int
    """How many processes count with their RSS, which counts shared pages several times: the sum is then an upper
    bound."""


def read(pid: int | None = None) -> TreeReading:
    """Sum the tree below `pid` (this process by default). Processes that end during the reading count nothing."""
    root = os.getpid() if pid is None else pid
    total = count = by_resident = 0
    for each in (root, *processes.descendants_of(root)):
        size = _pss(each)
        if size is None:
            size = processes.resident_bytes_of(each)
            by_resident += size is not None and size > 0
        if size is not None:
            total += size
            count += 1
    return TreeReading(total, count, by_resident)


class Tree(Meter):
    """PSS of this process and its descendants, summed."""

    name = "tree"

    def __init__(self) -> None:
        self._by_resident = 0

    @property
    def traits(self) -> Traits:
        """Read only when scopes begin and end: the kernel has no high-water mark for a sum over processes, except a
        cgroup's."""
        reason = "read when a scope begins or ends, not between; meters=('cgroup',) has an exact peak"
        if self._by_resident:
            reason = f"{self._by_resident} processes do not show their PSS and count with their RSS; {reason}"
        return Traits(
            self.name,
            "sum of PSS" if not self._by_resident else "sum of PSS, and of RSS where PSS may not be read",
            "process tree",
            exact=False,
            reason=reason,
            keeps_peak=False,
            resets_peak=False,
            cost_us=600,
        )

    def open(self) -> None:
        """Raises MeterUnavailable where there is no /proc."""
        if read().processes == 0:
            raise MeterUnavailable("the process tree cannot be read", "this meter needs Linux with /proc mounted")

    def now(self) -> int:
        """Return the bytes of the tree."""
        reading = read()
        self._by_resident = reading.by_resident
        return reading.bytes

    def read_and_reset(self) -> Reading:
        """Return (bytes now, the same, whether every process gave its PSS)."""
        now = self.now()
        return now, now, self._by_resident == 0


def _pss(pid: int) -> int | None:
    try:
        return processes.proportional_bytes(pid, "pss")
    except ProcessNotReadable:
        return None
