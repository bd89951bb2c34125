"""Requests to a program in standby, by others: `control_file` is where they are written."""

from __future__ import annotations

import json
import os
import time

from hiwater._os import control_file, mapped_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_SECONDS = 0.02


def open_of(pid: int) -> int | None:
    """A descriptor of the control file of a process; None if it is not in standby. Raises NoSuchProcess or ProcessNotReadable."""
    for place in mapped_files.places(pid):
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        if os.pread(descriptor, len(control_file.MAGIC), 0) == control_file.MAGIC:
            return descriptor
        os.close(descriptor)
    return None


def ask(descriptor: int, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any] | None:
    """Send a request and return the answer; None if there was none in time."""
    number = (_number(descriptor, control_file.ASKED) + 1) & 0xFFFFFFFF
    os.pwrite(descriptor, json.dumps(request).encode("ascii").ljust(control_file.ROOM, b"\0"), control_file.REQUEST)
    os.pwrite(descriptor, number.to_bytes(4, "little"), control_file.ASKED)
    until = time.monotonic() + timeout_seconds
    while time.monotonic() < until:
        if _number(descriptor, control_file.ANSWERED) == number:
            answer: dict[str, Any] = control_file.parsed(os.pread(descriptor, control_file.ROOM, control_file.ANSWER))
            return answer
        time.sleep(_POLL_SECONDS)
    return None


def _number(descriptor: int, offset: int) -> int:
    return int.from_bytes(os.pread(descriptor, 4, offset), "little")
