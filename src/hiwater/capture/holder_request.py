"""Has a running program search for what holds its objects: a number in the header of its capture asks for it, and the
recorder answers there.

The program's main thread begins the search between two instructions of Python, so one that is in C code comes to it
afterwards.
"""

from __future__ import annotations

import errno
import os
import time

from hiwater.capture import reader
from hiwater.capture.follow import Follower
from hiwater.errors import EngineFailed, NoSuchProcess, ProcessNotReadable, UsageError

_POLL_SECONDS = 0.02


def search(follower: Follower, begin_seconds: float, search_seconds: float) -> int | None:
    """Ask the program that writes this capture for a search, and wait until it is done. Returns the number of the
    request, or None if the program has not begun after `begin_seconds`. Raises UsageError if its hiwater cannot do
    it, ProcessNotReadable, NoSuchProcess if the program ends meanwhile, and EngineFailed for a search that fails."""
    header = follower.read_header()
    if "search_request" not in header:
        raise UsageError(
            "the program is recorded by an older hiwater, which cannot search for holders",
            "update hiwater in its environment",
        )
    number = (max(header["search_request"], header["search_answer"]) + 1) & 0xFFFFFFFF
    descriptor = _open(follower)
    try:
        offsets = reader.read_shape(descriptor)[1].header.fields
        assert offsets is not None  # a structured type
        for name, value in (("search_error", 0), ("search_request", number)):
            os.pwrite(descriptor, value.to_bytes(4, "little"), offsets[name][1])
    finally:
        os.close(descriptor)
    return _answered(follower, number, begin_seconds, search_seconds)


def _answered(follower: Follower, number: int, begin_seconds: float, search_seconds: float) -> int | None:
    began = time.monotonic()
    while True:
        header = follower.read_header()
        if header["search_answer"] == number:
            if header["search_error"]:
                raise _failed(header["search_error"])
            return number
        if not follower.is_alive:
            raise NoSuchProcess(f"process {header['pid']} ended during the search", "search earlier")
        waited = time.monotonic() - began
        if header["search_error"] != errno.EINPROGRESS and waited > begin_seconds:
            return None
        if waited > search_seconds:
            raise EngineFailed(
                f"the search has not ended after {waited:.0f} s", "try again when the machine is less busy"
            )
        time.sleep(_POLL_SECONDS)


def _failed(error: int) -> EngineFailed:
    if error == errno.ENOSPC:
        return EngineFailed(
            "there is no room in the capture for another search",
            "read the earlier ones with --search N, or record anew",
        )
    return EngineFailed(f"the search could not be made ({os.strerror(error)})", "see that there is memory for it")


def _open(follower: Follower) -> int:
    """The file that is followed, for writing: its path may lead elsewhere by now."""
    try:
        return os.open(f"/proc/self/fd/{follower.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ProcessNotReadable(
            f"{str(follower.path)!r} cannot be written ({error.strerror}), but a search is requested in it",
            "run hiwater as the owner of the process, or as root",
        ) from error
