"""The names by which memory_profiler chooses what is measured, and what they are here."""

from __future__ import annotations

import warnings
from functools import partial

from hiwater._os.procfs import ProcessMemory, ProportionalMemory
from hiwater.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT = "psutil"
TRACEMALLOC = "tracemalloc"
# Resident memory is one quantity, however it is asked for: `posix` ran `ps` for it.
_READERS: dict[str, Callable[[int], ProcessMemory]] = {
    "psutil": ProcessMemory,
    "posix": ProcessMemory,
    "psutil_pss": partial(ProportionalMemory, field="pss"),
    "psutil_uss": partial(ProportionalMemory, field="uss"),
}
NAMES = (*_READERS, TRACEMALLOC, "no_backend")


def choose_backend(new_backend: str | None = None) -> str:
    """The backend that will be used when `new_backend` is asked for (None: the default).

    A name that memory_profiler knows and this machine cannot serve gives the default, with a warning. Raises BadRequest for a
    name that nobody knows.
    """
    if new_backend is None:
        return DEFAULT
    if new_backend == "no_backend":
        warnings.warn(f"no_backend can not be used, {DEFAULT} used instead", stacklevel=2)
        return DEFAULT
    if new_backend not in NAMES:
        raise BadRequest(f"{new_backend!r} is no backend", f"choose one of {', '.join(NAMES[:-1])}")
    return new_backend


def reader_of(backend: str) -> Callable[[int], ProcessMemory]:
    """How a process is read under this backend."""
    return _READERS[backend]
