"""Which process is meant: a number is used again, a number with a start time and a boot is not. Asked of the kernel, never guessed.

It runs inside the watched program, too: it imports the standard library alone.
"""

from __future__ import annotations

from pathlib import Path

_STARTED_FIELD = 21  # field 22 of /proc/PID/stat, counted from 0


def is_alive(pid: int, start_ticks: int, boot_id: str, *, proc: Path = Path("/proc")) -> bool:
    """Whether the process with this number, start time and boot still runs. A number alone could be someone else's."""
    try:
        if current_boot_id(proc=proc) != boot_id:
            return False
        status = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return False
    # The name in parentheses may itself hold spaces and parentheses: count from the last one. "(name)" is field 2.
    fields = status[status.rfind(b")") + 2 :].split()
    state, started = fields[0], fields[_STARTED_FIELD - 2]
    return state not in (b"Z", b"X") and int(started) == start_ticks


def current_boot_id(*, proc: Path = Path("/proc")) -> str:
    """The number the kernel drew for itself when it was started. Raises OSError."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def start_ticks_of(pid: int) -> int | None:
    """When the process started, in the kernel's ticks since boot (proc(5), field 22 of stat); None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = file.read()
    except OSError:
        return None
    return int(status[status.rfind(b")") + 2 :].split()[19])
