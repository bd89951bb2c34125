"""The files of a memory cgroup, v1 or v2: their paths and their values. Imports little, because every recording
reads them."""

from __future__ import annotations

import os

import hiwater
from hiwater._os import trust

_NO_LIMIT_FROM = 1 << 60  # v1 writes "no limit" as the largest multiple of a page
_PART_BYTES = 1 << 16

_NAMES = {
    1: ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.limit_in_bytes"),
    2: ("memory.current", "memory.peak", "memory.events", "memory.max"),
}


class MemoryCgroup:
    """The folder of a memory cgroup, and its files: with the usage now, its peak, and the events."""

    def __init__(self, version: int, folder: str, top: str = "") -> None:
        self.version = version
        self.folder = folder
        self.top = top or folder
        """The folder of the outermost group that this process can read."""
        self.current, self.peak, self.events_file = (f"{folder}/{name}" for name in _NAMES[version][:3])

    @property
    def limits(self) -> list[str]:
        """Return the files with the limits of this group and of its ancestors: all of them apply."""
        name = _NAMES[self.version][3]
        folders = [self.folder]
        while folders[-1] != self.top and len(folders[-1]) > len(self.top):
            folders.append(os.path.dirname(folders[-1]))
        return [f"{folder}/{name}" for folder in folders if os.access(f"{folder}/{name}", os.R_OK)]

    def limit(self) -> int | None:
        """Return the limit in bytes, None where there is none."""
        text = _text(f"{self.folder}/{_NAMES[self.version][3]}")
        if text is None or text == "max":
            return None
        return int(text) if int(text) < _NO_LIMIT_FROM else None

    def events(self) -> dict[str, int]:
        """Return how often the group reached its limits: `max`, `oom`, `oom_kill` … (v2), `failcnt`, `oom_kill`
        (v1)."""
        found = event_counts(self.events_file)
        if self.version == 2:
            return found
        failures = _text(f"{self.folder}/memory.failcnt")
        return {**({"failcnt": int(failures)} if failures else {}), **found}

    def swap_bytes(self) -> int | None:
        """Return the group's bytes in swap, None where the kernel does not count them (v1)."""
        text = _text(f"{self.folder}/memory.swap.current") if self.version == 2 else None
        return int(text) if text else None


def find(pid: int | str = "self", proc: str = "/proc") -> MemoryCgroup:
    """Return the memory cgroup of a process; raises MeterUnavailable where none can be read."""
    memberships = (_text(f"{proc}/{pid}/cgroup") or "").splitlines()
    mounts = _mounts(pid, proc)
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        version = 2 if controllers == "" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            kind, *_, options = mount[mount.index("-") + 1 :]
            is_meant = kind == "cgroup2" if version == 2 else kind == "cgroup" and "memory" in options.split(",")
            group = _within(version, mount[4], mount[3], path) if is_meant else None
            if group is not None:
                return group
    raise hiwater.errors.MeterUnavailable(
        "no memory cgroup can be read here", "run where /sys/fs/cgroup shows the memory controller"
    )


def _mounts(pid: int | str = "self", proc: str = "/proc") -> list[list[str]]:
    """Return the fields of each mount of a cgroup file system, as mountinfo has them."""
    return [line.split() for line in (_text(f"{proc}/{pid}/mountinfo") or "").splitlines() if " - cgroup" in line]


def is_events_file(path: str) -> bool:
    """Return whether this is a cgroup's file with events: the path may come from a capture that was made elsewhere,
    and name any file."""
    if os.path.basename(path) not in [names[2] for names in _NAMES.values()]:
        return False
    return os.path.realpath(path) == path and any(path.startswith(mount[4].rstrip("/") + "/") for mount in _mounts())


def _within(version: int, mount_point: str, mount_root: str, path: str) -> MemoryCgroup | None:
    # In a container, the mount may show the group itself as its root, and /proc the path from the host's root.
    inside = path.removeprefix(mount_root.rstrip("/")) if mount_root != "/" else path
    for folder in (f"{mount_point}{inside}".rstrip("/"), mount_point):
        group = MemoryCgroup(version, folder, mount_point)
        if os.access(group.current, os.R_OK):
            return group
    return None


def event_counts(path: str) -> dict[str, int]:
    """Return the counts in one of the files with events; empty where it cannot be read."""
    lines = map(str.split, (_text(path) or "").splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}


def _text(path: str) -> str | None:
    # A program's start reads five of these; open() would take five times as long.
    try:
        file = os.open(path, os.O_RDONLY | trust.OPEN_FLAGS)
    except OSError:
        return None
    try:
        parts = [os.read(file, _PART_BYTES)]
        while parts[-1]:
            parts.append(os.read(file, _PART_BYTES))
    except OSError:
        return None
    finally:
        os.close(file)
    return os.fsdecode(b"".join(parts)).strip()
