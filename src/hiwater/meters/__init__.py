"""Meters: each reads one quantity now, and says what its figure is worth. One module a source, loaded when first asked for."""

from __future__ import annotations

from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.base import Meter

DEFAULT = ("resident", "heap", "python", "thread")
"""What a scope measures unless told otherwise. CPU, faults, switches and I/O are always taken."""

_HOMES = {
    "resident": ("process", "Resident"),
    "heap": ("heap", "Heap"),
    "python": ("heap", "PythonObjects"),
    "thread": ("heap", "ThreadHeap"),
    "pss": ("process", "Pss"),
    "uss": ("process", "Uss"),
    "swap": ("process", "Swap"),
    "tree": ("tree", "Tree"),
    "cgroup": ("cgroup", "Cgroup"),
    "tracemalloc": ("traced", "Traced"),
}
NAMES = tuple(_HOMES)
"""All there are."""
PER_THREAD = frozenset({"thread"})
"""Those whose figure each thread has for itself."""


def create(name: str) -> Meter:
    """Return a new meter; raises MeterUnavailable for a name that is none."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise MeterUnavailable(f"{name!r} is no meter", f"choose from {', '.join(NAMES)}")
    module = importlib.import_module(f"hiwater.meters.{home[0]}")
    meter: Meter = getattr(module, home[1])()
    return meter
