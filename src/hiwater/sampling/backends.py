"""memory_profiler's names of backends, and what they measure here."""

from __future__ import annotations

import warnings
from functools import partial

from hiwater._os.processes import ProcessMemory, ProportionalMemory
from hiwater.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT = "psutil"
TRACEMALLOC = "tracemalloc"
# `psutil` and `posix` are the same quantity, resident memory; in memory_profiler, `posix` runs `ps`.
READERS: dict[str, Callable[[int], ProcessMemory]] = {
    "psutil": ProcessMemory,
    "posix": ProcessMemory,
    "psutil_pss": partial(ProportionalMemory, field="pss"),
    "psutil_uss": partial(ProportionalMemory, field="uss"),
}
"""What reads a process with each backend."""
NAMES = (*READERS, TRACEMALLOC, "no_backend")


def choose_backend(new_backend: str | None = None) -> str:
    """The backend that is used for the name `new_backend` (None: the default).

    For a name of memory_profiler that does not work here, it is the default, with a warning. Raises BadRequest for an
    unknown name.
    """
    if new_backend is None:
        return DEFAULT
    if new_backend == "no_backend":
        warnings.warn(f"no_backend can not be used, {DEFAULT} used instead", stacklevel=2)
        return DEFAULT
    if new_backend not in NAMES:
        raise BadRequest(f"{new_backend!r} is not a backend", f"choose one of {', '.join(NAMES[:-1])}")
    return new_backend
