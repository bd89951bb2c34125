"""Named intervals of this process for a sampler outside, which shows them on the timeline.

`hiwater sample -- COMMAND` names a file in HIWATER_SCOPES, which the command and its children inherit. Each interval is one line,
appended with one write, so that processes and threads never mix their lines. Without a sampler, nothing happens.

    start_ns end_ns pid thread_id depth start_bytes end_bytes peak_bytes name

Times are CLOCK_MONOTONIC nanoseconds; sizes are resident bytes, -1 if not known; the name is a JSON string.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NamedTuple

    class ScopeLine(NamedTuple):
        """One interval, as in its line."""

        start_ns: int
        end_ns: int
        pid: int
        thread_id: int
        depth: int
        start_bytes: int
        end_bytes: int
        peak_bytes: int
        name: str
else:
    from collections import namedtuple

    ScopeLine = namedtuple("ScopeLine", "start_ns end_ns pid thread_id depth start_bytes end_bytes peak_bytes name")  # noqa: PYI024 - typing takes longer to load than all of this

VARIABLE = "HIWATER_SCOPES"
UNKNOWN = -1
_LONGEST_NAME = 1000


def wanted() -> bool:
    """Whether a sampler reads the intervals of this process."""
    return bool(os.environ.get(VARIABLE))


def append(
    name: str,
    start_ns: int,
    end_ns: int,
    *,
    depth: int = 0,
    start_bytes: int = UNKNOWN,
    end_bytes: int = UNKNOWN,
    peak_bytes: int = UNKNOWN,
) -> None:
    """Append the line of an interval that has ended. Never raises, because sampling must not break a program."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    import threading
    from json import dumps

    numbers = (start_ns, end_ns, os.getpid(), threading.get_native_id(), depth, start_bytes, end_bytes, peak_bytes)
    line = " ".join(map(str, numbers)) + " " + dumps(name[:_LONGEST_NAME]) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode("ascii"))
        finally:
            os.close(descriptor)
    except OSError:
        return  # the sampler has ended


def parse(text: bytes) -> Iterator[ScopeLine]:
    """The intervals in complete lines of such a file; invalid lines are skipped."""
    import json

    for line in text.split(b"\n"):
        parts = line.split(b" ", 8)
        try:
            numbers = [int(part) for part in parts[:8]]
            name = json.loads(parts[8])
        except (ValueError, IndexError, RecursionError):
            continue
        start_ns, end_ns, pid, thread_id, depth, *sizes = numbers
        fits = min(start_ns, end_ns, pid, thread_id, depth) >= 0 and max(pid, thread_id, depth) < 1 << 32
        if (
            isinstance(name, str)
            and fits
            and start_ns <= end_ns < 1 << 63
            and all(abs(size) < 1 << 62 for size in sizes)
        ):
            yield ScopeLine(start_ns, end_ns, pid, thread_id, depth, sizes[0], sizes[1], sizes[2], name)
