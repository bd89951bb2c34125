"""Is the process that wrote a capture still the one with that number? Asked of the kernel, never guessed.

The writer uses it inside the watched program: it imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hiwater._os.process_identity import is_alive

STATE_RECORDING, STATE_ENDED, STATE_FAILED = 1, 2, 3


def is_being_written(header: Mapping[str, Any]) -> bool:
    """Whether the process that writes the capture with this header still does. One that was watched from outside does not write its own."""
    if header["state"] != STATE_RECORDING or header["ended_ns"] != 0:
        return False
    pid = header.get("writer_pid") or header["pid"]
    start_ticks = header.get("writer_start_ticks") or header["process_start_ticks"]
    return is_alive(pid, start_ticks, header["boot_id"].decode("ascii", "replace"))
