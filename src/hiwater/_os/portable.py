"""What Linux has and another system lacks, with what takes its place there. What reads captures, measures lines and
samples uses these names; what records, which Linux alone does, uses the system's own.

This module also runs inside the recorded program, so it imports only what the interpreter has loaded.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HAS_PROC = os.path.exists("/proc/self/statm")
"""Whether the kernel's files tell of processes. Where they do not, psutil does."""


def at_fork(**callbacks: Callable[[], object]) -> None:
    """`os.register_at_fork()`, where processes fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**callbacks)


def platform_name() -> str:
    """The system, its release and the processor."""
    if hasattr(os, "uname"):
        system = os.uname()
        return f"{system.sysname} {system.release} {system.machine}"
    import platform

    return f"{platform.system()} {platform.release()} {platform.machine()}"


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`os.pread()`."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def read_into(descriptor: int, window: memoryview, offset: int) -> int:
    """Fill the start of `window` from a place in the file; return how many bytes."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [window], offset)
    content = read_at(descriptor, len(window), offset)
    window[: len(content)] = content
    return len(content)


def write_all_at(descriptor: int, content: bytes | bytearray, offset: int) -> None:
    """Write all of it at a place in the file. Raises OSError."""
    window = memoryview(content)
    while window:
        if hasattr(os, "pwrite"):
            written = os.pwrite(descriptor, window, offset)
        else:
            os.lseek(descriptor, offset, os.SEEK_SET)
            written = os.write(descriptor, window)
        window, offset = window[written:], offset + written
    window.release()
