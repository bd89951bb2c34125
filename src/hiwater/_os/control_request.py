"""Requests to a program in standby, by others: `control_file` is where they are written."""

from __future__ import annotations

import json
import os
import time

from hiwater._os import control_file, mapped_files, trust
from hiwater._os.process_identity import owner_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_SECONDS = 0.02


def open_of(pid: int) -> int | None:
    """A descriptor of the control file of a process; None if it is not in standby. Raises NoSuchProcess or
    ProcessNotReadable."""
    for place in mapped_files.places(pid):
        try:
            descriptor = trust.open_regular(place, os.O_RDWR, follows=True)  # one of the kernel's links, perhaps
        except OSError:
            continue
        if _is_of(descriptor, pid) and os.pread(descriptor, len(control_file.MAGIC), 0) == control_file.MAGIC:
            return descriptor
        os.close(descriptor)
    return None


def _is_of(descriptor: int, pid: int) -> bool:
    """Whether an open file is one that the user of this process made: a path may lead elsewhere by the time that it
    is opened."""
    found, owner = os.fstat(descriptor), owner_of(pid)
    return owner is not None and found.st_uid == owner[0]


def ask(descriptor: int, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any] | None:
    """Send a request and return the answer; None if there was none in time."""
    number = (_number(descriptor, control_file.ASKED) + 1) & 0xFFFFFFFF
    os.pwrite(descriptor, json.dumps(request).encode("ascii").ljust(control_file.ROOM, b"\0"), control_file.REQUEST)
    os.pwrite(descriptor, number.to_bytes(4, "little"), control_file.ASKED)
    until = time.monotonic() + timeout_seconds
    while time.monotonic() < until:
        if _number(descriptor, control_file.ANSWERED) == number:
            return control_file.parsed(os.pread(descriptor, control_file.ROOM, control_file.ANSWER))
        time.sleep(_POLL_SECONDS)
    return None


def _number(descriptor: int, offset: int) -> int:
    return int.from_bytes(os.pread(descriptor, 4, offset), "little")
