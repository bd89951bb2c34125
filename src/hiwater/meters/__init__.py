"""Meters: each reads one quantity now, and says what its figure is worth. One module a source, loaded when first asked for."""

from __future__ import annotations

import sys

from hiwater.errors import MeterUnavailable
from hiwater.meters.libraries import ALLOCATORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.meters.base import Meter

DEFAULT = ("resident", "heap", "python", "thread")
"""What a scope measures unless told otherwise. CPU, faults, switches and I/O are always taken."""

_HOMES = {
    "resident": ("process", "ResidentMeter"),
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
"""All there are of this machine's memory. Those of accelerators are called BACKEND:DEVICE:QUANTITY: see hiwater.meters.devices."""
GROUPS = frozenset({"gpu", "nvml"})
"""Names that stand for several meters: all devices in use, and all cards that the driver shows."""
PER_THREAD = frozenset({"thread"})
"""Those whose figure each thread has for itself."""


def create(name: str) -> Meter:
    """Return a new meter; raises MeterUnavailable for a name that is none."""
    import importlib

    if ":" in name:
        from hiwater.meters import devices

        return devices.meter(name)
    home = _HOMES.get(name)
    if home is None:
        raise MeterUnavailable(
            f"{name!r} is no meter", f"choose from {', '.join(NAMES)}, gpu, or torch:cuda:0:allocated and the like"
        )
    module = importlib.import_module(f"hiwater.meters.{home[0]}")
    meter: Meter = getattr(module, home[1])()
    return meter


def device_names() -> list[str]:
    """The meters of all devices that the program uses now; a glance where no GPU library is loaded."""
    if not any(name in sys.modules for name in ALLOCATORS):
        return []
    from hiwater.meters import devices

    return devices.names()


def device_refusals() -> dict[str, str]:
    """Devices in use that cannot be measured, with the reason. Known after `device_names`."""
    devices = sys.modules.get("hiwater.meters.devices")
    return devices.refusals() if devices is not None else {}


def expand(wanted: Sequence[str], in_use: list[str]) -> tuple[list[str], dict[str, str]]:
    """Names with the groups `gpu` (those `in_use`) and `nvml` replaced by the meters they stand for, and why a group stands for none now.

    Raises MeterUnavailable for `nvml` where there is none: a driver does not come later, as the use of a device may.
    """
    if not GROUPS.intersection(wanted):
        return list(wanted), {}
    from hiwater.meters import devices

    found: list[str] = []
    empty: dict[str, str] = {}
    for name in wanted:
        if name == "nvml":
            found += devices.nvml_names()
            empty |= devices.nvml_unknown()
        elif name == "gpu":
            found += in_use
            if not in_use:
                empty[name] = devices.why_none()
        else:
            found.append(name)
    return found, empty
