"""Is the process that wrote a capture still the one with that number? Asked of the kernel, never guessed.

The writer uses it inside the watched program: it imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE_RECORDING, STATE_ENDED, STATE_FAILED = 1, 2, 3

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


def is_being_written(header: Mapping[str, Any]) -> bool:
    """Whether the process that writes the capture with this header still does. One that was watched from outside does not write its own."""
    if header["state"] != STATE_RECORDING or header["ended_ns"] != 0:
        return False
    pid = header.get("writer_pid") or header["pid"]
    start_ticks = header.get("writer_start_ticks") or header["process_start_ticks"]
    return is_alive(pid, start_ticks, header["boot_id"].decode("ascii", "replace"))
