"""Does the process that wrote a capture still run, and has it only waited? By the header and the kernel, never guessed.

The writer uses it inside the watched program: it imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hiwater._os.process_identity import is_alive

STATE_RECORDING, STATE_ENDED, STATE_FAILED = 1, 2, 3


QUIET_IN_CHILD_NS = 100_000_000
"""In this time after a fork the child may have no recorder's thread (kQuietInChild of native/session/sampler.cpp),
and so no samples."""


def is_waiting_child(header: Mapping[str, Any], started_by: str) -> bool:
    """Whether it was forked, and has shown no sign of life since its first moments: it waits, or was killed while it
    waited. A copy from the middle of a recording does not tell."""
    is_young = not header["ended_ns"] and header["heartbeat_ns"] < QUIET_IN_CHILD_NS
    return started_by == "fork" and is_young and not header.get("snapshot_ns")


def is_being_written(header: Mapping[str, Any]) -> bool:
    """Whether the process that writes the capture with this header still does. One that was watched from outside
    does not write its own."""
    if header["state"] != STATE_RECORDING or header["ended_ns"] != 0:
        return False
    pid = header.get("writer_pid") or header["pid"]
    start_ticks = header.get("writer_start_ticks") or header["process_start_ticks"]
    return is_alive(pid, start_ticks, header["boot_id"].decode("ascii", "replace"))


def runs_on(header: Mapping[str, Any]) -> bool:
    """Whether the recording ended and its process did not: somebody detached, or the program stopped its recorder.
    Only the end of a process tells an exit code, or how else it ended."""
    if header["state"] == STATE_RECORDING or header["exit_code"] != -1 or header.get("ended_by"):
        return False
    return is_alive(header["pid"], header["process_start_ticks"], header["boot_id"].decode("ascii", "replace"))
