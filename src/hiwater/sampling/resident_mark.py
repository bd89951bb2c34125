"""The kernel's mark of this process's resident memory, set back at the start of a block where nobody else relies on it.

There is one mark a process. Whoever sets it back takes it from whoever reads it later, so a recording of this process, which
reads it at its end, keeps it, and so do scopes that are open.
"""

from __future__ import annotations

import os
import sys

from hiwater.sampling.procfs import ProcessMemory

_SET_BACK = b"5"  # proc(5), /proc/pid/clear_refs


def set_back() -> bool:
    """Set the mark to what is resident now; false where the kernel refuses or a recording or a scope of hiwater's needs it."""
    if _is_recording() or _has_open_scopes():
        return False
    try:
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, _SET_BACK) == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)


def read() -> int:
    """The most that was resident since the mark was last set back, in bytes; 0 where the kernel keeps none."""
    memory = ProcessMemory(os.getpid())
    try:
        figures = memory.mark_and_resident()
    finally:
        memory.close()
    return figures[0] if figures is not None else 0


def _is_recording() -> bool:
    core = sys.modules.get("hiwater._core")
    return core is not None and bool(core.is_recording())


def _has_open_scopes() -> bool:
    scopes = sys.modules.get("hiwater.scopes")
    return scopes is not None and scopes.FOLDING.open_scopes > 0
