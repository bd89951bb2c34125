"""Which process is meant: a number is used again, a number with a start time and a boot is not. Asked of the kernel, never guessed.

It runs inside the watched program, too: it imports the standard library alone.
"""

from __future__ import annotations

from pathlib import Path

STATE, PARENT, _STARTED = 0, 1, 19
"""Where these are among `stat_fields`."""


def is_alive(pid: int, start_ticks: int, boot_id: str, *, proc: Path = Path("/proc")) -> bool:
    """Whether the process with this number, start time and boot still runs. A number alone could be someone else's."""
    try:
        if current_boot_id(proc=proc) != boot_id:
            return False
    except OSError:
        return False
    fields = stat_fields(pid, proc=proc)
    return bool(fields) and fields[STATE] not in (b"Z", b"X") and int(fields[_STARTED]) == start_ticks


def current_boot_id(*, proc: Path = Path("/proc")) -> str:
    """The number the kernel drew for itself when it was started. Raises OSError."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def start_ticks_of(pid: int) -> int | None:
    """When the process started, in the kernel's ticks since boot; None when there is none."""
    fields = stat_fields(pid)
    return int(fields[_STARTED]) if fields else None


def stat_fields(pid: int, *, proc: Path | str = "/proc") -> list[bytes]:
    """The fields of /proc/PID/stat (proc(5)) from the third on, the process's state; empty when there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            status = file.read()
    except OSError:
        return []
    # The second field is a name in parentheses, which may itself hold spaces and parentheses.
    return status[status.rfind(b")") + 2 :].split()
