"""The memory of this process's cgroup: all processes in it, with page cache, kernel memory and tmpfs: what a container's limit is about.

Peaks: v2 since Linux 6.12 starts `memory.peak` anew for one descriptor alone, so ours is exact and disturbs nobody. Where it cannot
(older kernels, v1, whose reset would be everybody's) the group's lifetime mark still tells when it moved: then the peak is exact,
otherwise what was seen is a lower bound.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits
from hiwater.meters.kept import Kept

_NO_LIMIT_FROM = 1 << 60  # v1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True, slots=True)
class Group:
    """Where a memory cgroup's files are, and what they are called."""

    version: int
    folder: str

    @property
    def current(self) -> str:
        return f"{self.folder}/{'memory.current' if self.version == 2 else 'memory.usage_in_bytes'}"

    @property
    def peak(self) -> str:
        return f"{self.folder}/{'memory.peak' if self.version == 2 else 'memory.max_usage_in_bytes'}"

    def limit(self) -> int | None:
        """Return the limit in bytes, None where there is none."""
        text = _text(f"{self.folder}/{'memory.max' if self.version == 2 else 'memory.limit_in_bytes'}")
        if text is None or text == "max":
            return None
        return int(text) if int(text) < _NO_LIMIT_FROM else None

    def events(self) -> dict[str, int]:
        """Return how often the group met its limits: `max`, `oom`, `oom_kill` … (v2), `failcnt`, `oom_kill` (v1)."""
        if self.version == 2:
            return _pairs(_text(f"{self.folder}/memory.events") or "")
        found = _pairs(_text(f"{self.folder}/memory.oom_control") or "")
        failures = _text(f"{self.folder}/memory.failcnt")
        return {**({"failcnt": int(failures)} if failures else {}), **found}

    def swap_bytes(self) -> int | None:
        """Return what the group has in swap, where the kernel counts it (v2)."""
        text = _text(f"{self.folder}/memory.swap.current") if self.version == 2 else None
        return int(text) if text else None


def find(pid: int | str = "self", proc: str = "/proc") -> Group:
    """Return the memory cgroup of a process; raises MeterUnavailable where none can be read."""
    memberships = (_text(f"{proc}/{pid}/cgroup") or "").splitlines()
    mounts = [line.split() for line in (_text(f"{proc}/{pid}/mountinfo") or "").splitlines()]
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        version = 2 if controllers == "" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            kind = mount[mount.index("-") + 1 :]
            if (version == 2 and kind[0] == "cgroup2") or (
                version == 1 and kind[0] == "cgroup" and "memory" in kind[-1].split(",")
            ):
                group = _within(version, mount[4], mount[3], path)
                if group is not None:
                    return group
    raise MeterUnavailable("no memory cgroup can be read here", "run where /sys/fs/cgroup shows the memory controller")


def _within(version: int, mount_point: str, mount_root: str, path: str) -> Group | None:
    # In a container the mount may show the group itself as its root, while /proc tells the path from the host's root.
    inside = path.removeprefix(mount_root.rstrip("/")) if mount_root != "/" else path
    for folder in (f"{mount_point}{inside}".rstrip("/"), mount_point):
        group = Group(version, folder)
        if os.access(group.current, os.R_OK):
            return group
    return None


class Cgroup(Meter):
    """Bytes charged to this process's cgroup, other processes included."""

    name = "cgroup"

    def __init__(self, group: Group | None = None) -> None:
        self._group = group
        self._current: Kept | None = None
        self._peak: Kept | None = None
        self._own_mark = False
        self._last_mark = self._last_now = 0

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
        self._current = Kept(self._group.current)
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

    def fold(self) -> Reading:
        """Return (charged now, the most since the last fold, whether that misses nothing)."""
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
    def _open_peak(group: Group) -> tuple[Kept | None, bool]:
        if group.version == 2:
            mine = Kept(group.peak, os.O_RDWR)
            try:
                os.pwrite(mine.descriptor(), b"reset\n", 0)
            except OSError:
                mine.close()
            else:
                return mine, True
        shared = Kept(group.peak)
        try:
            int(shared.read(32))
        except (OSError, ValueError):
            return None, False
        return shared, False


def _text(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def _pairs(text: str) -> dict[str, int]:
    return {words[0]: int(words[1]) for words in map(str.split, text.splitlines()) if len(words) == 2}
