"""Meters: each reads one quantity and states how exact its figure is. Each source is a module, loaded at its first
use."""

from __future__ import annotations

import sys

from hiwater import _registry
from hiwater._os import portable
from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.meters.base import Meter

DEFAULT = ("resident", "heap", "python", "thread")
"""What a scope measures by default. CPU, faults, switches and I/O are always read."""

_HOMES = {
    "resident": "process:ResidentMeter" if portable.HAS_PROC else "elsewhere:SampledResidentMeter",
    "heap": "heap:Heap",
    "python": "heap:PythonObjects",
    "thread": "heap:ThreadHeap",
    "pss": "process:Pss",
    "uss": "process:Uss",
    "swap": "process:Swap",
    "tree": "tree:Tree",
    "cgroup": "cgroup:Cgroup",
    "tracemalloc": "traced:Traced",
}
NAMES = tuple(_HOMES)
"""All meters of host memory. Those of accelerators are called BACKEND:DEVICE:QUANTITY: see hiwater.meters.devices."""
GROUPS = frozenset({"gpu", "nvml"})
"""Names of several meters at once: all devices in use, and all cards that the driver shows."""
PER_THREAD = frozenset({"thread"})
"""Meters that have a separate figure for each thread."""


def create(name: str) -> Meter:
    """Return a new meter; raises MeterUnavailable for an unknown name."""
    if ":" in name:
        from hiwater.meters import devices

        return devices.meter(name)
    home = _HOMES.get(name)
    if home is None:
        raise MeterUnavailable(
            f"{name!r} is not a meter", f"choose from {', '.join(NAMES)}, gpu, or torch:cuda:0:allocated and the like"
        )
    meter: Meter = _registry.load(f"hiwater.meters.{home}")()
    return meter


def device_names() -> list[str]:
    """The meters of all devices that the program uses now. Costs almost nothing where no GPU library is loaded."""
    if not any(name in sys.modules for name in _registry.DEVICE_LIBRARIES):
        return []
    from hiwater.meters import devices

    return devices.names()


def device_refusals() -> dict[str, str]:
    """Devices in use that cannot be measured, with the reason. `device_names` finds them."""
    devices = sys.modules.get("hiwater.meters.devices")
    return devices.refusals() if devices is not None else {}


def expand(wanted: Sequence[str], in_use: list[str]) -> tuple[list[str], dict[str, str]]:
    """The names, with the groups `gpu` (the meters `in_use`) and `nvml` replaced by their meters; and the reason for
    each group without one.

    Raises MeterUnavailable for `nvml` where there is no driver: the program may begin to use a device later, but a
    driver does not appear.
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
