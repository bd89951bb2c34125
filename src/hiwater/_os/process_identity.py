"""The identity of a process. The kernel reuses process numbers; number, start time and boot together are unique.

This module also runs inside the recorded program, so it imports only the standard library.
"""

from __future__ import annotations

import os
import sys

STATE, PARENT, FLAGS, THREADS, _STARTED, WAIT_STATUS = 0, 1, 6, 17, 19, 49
_ENDED = (b"Z", b"X")
CHILDREN_FAULTS = (8, 10)  # minor and major page faults of children that were waited for
"""Where these are among `stat_fields`."""


def is_alive(pid: int, start_ticks: int, boot_id: str, *, proc: str | os.PathLike[str] = "/proc") -> bool:
    """Whether the process with this number, start time and boot still runs. The number alone could belong to another
    process."""
    try:
        if current_boot_id(proc=proc) != boot_id:
            return False
    except OSError:
        return False
    return runs(f"{pid}.{start_ticks}", proc=proc)


def current_boot_id(*, proc: str | os.PathLike[str] = "/proc") -> str:
    """The random number that the kernel chose at boot. Raises OSError."""
    with open(f"{os.fspath(proc)}/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def start_ticks_of(pid: int) -> int | None:
    """When the process started, in the kernel's ticks since boot; None when there is no such process."""
    fields = stat_fields(pid)
    return int(fields[_STARTED]) if fields else None


def this_process() -> str:
    """What names this process, also after it has executed another program: its number and its start."""
    return f"{os.getpid()}.{start_ticks_of(os.getpid())}"


def host_name() -> str:
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def is_own_command() -> bool:
    """Whether this interpreter runs a command of hiwater, which is no part of the program."""
    words = sys.orig_argv[1:3]
    return bool(words) and (os.path.basename(words[0]) == "hiwater" or words == ["-m", "hiwater"])


def number_space() -> int:
    """What tells apart the namespaces in which processes have their numbers; 0 where the kernel does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def runs(process: str, *, proc: str | os.PathLike[str] = "/proc") -> bool:
    """Whether a process still runs: "NUMBER", or what `this_process()` returned there. Only for processes of this
    number space."""
    number, _, start = process.partition(".")
    fields = stat_fields(int(number), proc=proc)
    return bool(fields) and fields[STATE] not in _ENDED and (not start or fields[_STARTED] == start.encode())


def owner_of(pid: int) -> tuple[int, int] | None:
    """The effective user and group of a process; None when there is no such process. Its folder in /proc is root's
    where it may not be dumped."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            rows = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except OSError:
        return None
    user, group = (int(rows[name].split()[1]) for name in (b"Uid", b"Gid"))
    return user, group


def stat_fields(pid: int, *, proc: str | os.PathLike[str] = "/proc") -> list[bytes]:
    """The fields of /proc/PID/stat (proc(5)) from the third on, the process's state; empty when there is none."""
    try:
        with open(f"{os.fspath(proc)}/{pid}/stat", "rb", buffering=0) as file:
            status = file.read()
    except OSError:
        return []
    # The second field is a name in parentheses, which may itself hold spaces and parentheses.
    return status[status.rfind(b")") + 2 :].split()
