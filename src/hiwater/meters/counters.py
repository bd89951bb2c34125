"""Counters that only rise: CPU time, page faults, context switches, bytes read and written. A scope's value is the
difference of two readings.

getrusage is right for these: unlike its ru_maxrss, differences are not disturbed by what the process was before exec.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hiwater._os.kept_file import KeptFile

try:
    import resource
except ImportError:  # Windows, where processor time alone is counted
    _used: Callable[[], Any] = os.times
else:
    _used = partial(resource.getrusage, resource.RUSAGE_SELF)

NAMES = (
    "cpu_user_seconds",
    "cpu_system_seconds",
    "minor_page_faults",
    "major_page_faults",
    "voluntary_switches",
    "involuntary_switches",
    "io_read_bytes",
    "io_write_bytes",
    "io_read_call_bytes",
    "io_write_call_bytes",
)
_RUSAGE_FIELDS = ("ru_utime", "ru_stime", "ru_minflt", "ru_majflt", "ru_nvcsw", "ru_nivcsw")
_TIMES_FIELDS = ("user", "system", "", "", "", "")
_IO_KEYS = {b"read_bytes:": 0, b"write_bytes:": 1, b"rchar:": 2, b"wchar:": 3}
_io = KeptFile("/proc/self/io")
_io_shown = [True]  # if the kernel refuses it once, it always will

Counters = tuple[int, Any, bytes]
"""(perf_counter in ns, getrusage, /proc/self/io as text). The text is parsed only when a result is read, to keep
scopes cheap."""


def read() -> Counters:
    """Read all counters of this process, in about 3 us. The text of I/O is empty where the kernel does not show it."""
    io = b""
    if _io_shown[0]:
        try:
            io = _io.read_quickly(512)
            if not io.startswith(b"rchar:"):
                io = _io.read(512)
        except OSError:
            _io_shown[0] = False
    return time.perf_counter_ns(), _used(), io


def difference(start: Counters, end: Counters) -> dict[str, int | float | None]:
    """Return the differences between two readings, by NAMES; None where a counter is not known.

    `io_read_bytes` came from storage; `io_read_call_bytes` is what read() and similar calls returned, cache included.
    """
    a, b = start[1], end[1]
    fields = _RUSAGE_FIELDS if hasattr(a, "ru_utime") else _TIMES_FIELDS
    known: list[int | float | None] = [
        getattr(b, name) - getattr(a, name) if hasattr(a, name) else None for name in fields
    ]
    before, after = _io_fields(start[2]), _io_fields(end[2])
    known += [y - x for x, y in zip(before, after, strict=True)] if before and after else [None] * len(_IO_KEYS)
    return dict(zip(NAMES, known, strict=True))


def _io_fields(text: bytes) -> list[int]:
    fields = text.split()
    found = {
        _IO_KEYS[key]: int(value) for key, value in zip(fields[::2], fields[1::2], strict=False) if key in _IO_KEYS
    }
    return [found[i] for i in sorted(found)] if len(found) == len(_IO_KEYS) else []
