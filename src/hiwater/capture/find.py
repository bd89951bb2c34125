"""From a process to the capture that it writes."""

from __future__ import annotations

import os
from contextlib import suppress

from hiwater._os import mapped_files
from hiwater._os.process_identity import start_ticks_of
from hiwater.capture.follow import Follower
from hiwater.errors import CaptureError, MissingCapture, ProcessNotReadable


def pid_in(source: str) -> int | None:
    """The number of a process where a command was given one, and no file of this name."""
    return int(source) if source.isdecimal() and not os.path.exists(source) else None


def capture_of(pid: int) -> Follower:
    """The capture that this process maps, opened. Raises NoSuchProcess, ProcessNotReadable or MissingCapture."""
    refused = None
    for place in mapped_files.places(pid):
        if not os.access(place, os.R_OK):
            refused = place
            continue
        with suppress(CaptureError):
            follower = Follower(place, pid)
            if follower.header["process_start_ticks"] == start_ticks_of(pid):
                return follower
            follower.close()
    if refused is not None:
        raise ProcessNotReadable(
            f"process {pid} has mapped {refused!r}, which cannot be read",
            "if it is the capture, run hiwater as its owner or as root",
        )
    raise MissingCapture(
        f"process {pid} has no recording", "start the program with `hiwater run`, or call `hiwater.record()` in it"
    )
