"""RMM: RAPIDS' memory manager, which CuPy, Numba and torch can be configured to use. Not yet tested, on a GPU or elsewhere."""

from __future__ import annotations

import sys

from hiwater.meters.devices.base import Backend, Device, Standing, Status, known
from hiwater.meters.devices.statistics import leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = {"allocated": ("current_bytes", "peak_bytes")}
_FIELDS = ("current_bytes", "current_count", "peak_bytes", "peak_count", "total_bytes", "total_count")


class Rmm(Backend):
    """Memory allocated through RMM since the program called `rmm.statistics.enable_statistics()`. hiwater does not call it, because the call
    replaces the program's allocator.

    RMM counts for the device that was current at that call.
    """

    name = "rmm"
    library = "rmm"
    quantities = ("allocated",)
    source = "rmm.statistics"

    def status(self) -> Status:
        """Works while the program has RMM's statistics on."""
        if sys.modules.get("rmm") is None:
            return Status(False, "RMM is not loaded")
        if _statistics() is None:
            return Status(False, "RMM's statistics are off: rmm.statistics.enable_statistics() turns them on")
        return Status(True, "RMM")

    def devices(self) -> list[Device]:
        """One device; RMM does not say which."""
        return [Device(self.name, "current", 0)] if _statistics() is not None else []

    def statistics(self, device: Device) -> dict[str, int]:  # noqa: ARG002 - there is one
        """The counters on top of RMM's stack of them."""
        counters = _statistics()
        return dict(leaves({name: getattr(counters, name, None) for name in _FIELDS}))

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated bytes."""
        return known(self.statistics(device), _NAMES)

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """RMM's counters are a stack, which belongs to the program."""
        return "RMM's peak begins at the program's last push of statistics, and only the program may reset it"


def _statistics() -> Any:
    get_statistics = getattr(sys.modules.get("rmm.statistics"), "get_statistics", None)
    return get_statistics() if get_statistics is not None else None
