"""Named intervals of this process for a sampler outside, which shows them on the timeline.

`hiwater sample -- COMMAND` names a file in HIWATER_SCOPES, which the command and its children inherit. Each interval is
one line, appended with one write, so that processes and threads never mix their lines. Without a sampler, nothing
happens.

    start_ns end_ns pid thread_id depth start_bytes end_bytes peak_bytes name

Times are CLOCK_MONOTONIC nanoseconds; sizes are resident bytes, -1 if not known; the name is a JSON string.
"""

from __future__ import annotations

import os
from functools import cache

from hiwater._os import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "HIWATER_SCOPES"
UNKNOWN = -1
_LONGEST_NAME = 1000


def wanted() -> bool:
    """Whether a sampler reads the intervals of this process."""
    return bool(_path())


@cache
def _path() -> str:
    """The sampler's file; "" where there is none, or the environment is not this user's wish."""
    return os.environ.get(VARIABLE, "") if trust.obeys_environment() else ""


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
    path = _path()
    if not path:
        return
    import threading
    from json import dumps

    numbers = (start_ns, end_ns, os.getpid(), threading.get_native_id(), depth, start_bytes, end_bytes, peak_bytes)
    line = " ".join(map(str, numbers)) + " " + dumps(name[:_LONGEST_NAME]) + "\n"
    try:
        descriptor = trust.open_regular(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line.encode("ascii"))
        finally:
            os.close(descriptor)
    except OSError:
        return  # the sampler has ended


def parse(text: bytes) -> Iterator[tuple[str, list[int]]]:
    """(name, the eight numbers) of each interval in complete lines of such a file; invalid lines are skipped."""
    import json

    for line in text.split(b"\n"):
        parts = line.split(b" ", 8)
        try:
            numbers = [int(part) for part in parts[:8]]
            name = json.loads(parts[8])
        except (ValueError, IndexError, RecursionError):
            continue
        start_ns, end_ns, pid, thread_id, depth, *sizes = numbers
        fits = 0 <= start_ns <= end_ns < 1 << 63 and all(0 <= number < 1 << 32 for number in (pid, thread_id, depth))
        if isinstance(name, str) and fits and all(abs(size) < 1 << 62 for size in sizes):
            yield name, numbers
