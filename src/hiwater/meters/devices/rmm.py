"""RMM: RAPIDS' memory manager, which also serves CuPy, Numba and torch where they were told to use it. Not seen on a real GPU, nor run at all."""

from __future__ import annotations

import sys

from hiwater.meters.devices.base import Backend, Device, Standing, Status, known, leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = {"allocated": ("current_bytes", "peak_bytes")}
_FIELDS = ("current_bytes", "current_count", "peak_bytes", "peak_count", "total_bytes", "total_count")


class Rmm(Backend):
    """Memory handed out through RMM since the program called `rmm.statistics.enable_statistics()`; we do not, as that replaces its allocator.

    RMM counts for the device that was current then.
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
        """One, whichever it is."""
        return [Device(self.name, "current", 0)] if _statistics() is not None else []

    def statistics(self, device: Device) -> dict[str, int]:  # noqa: ARG002 - there is one
        """The counters on top of RMM's stack of them."""
        said = _statistics()
        return dict(leaves({name: getattr(said, name, None) for name in _FIELDS}))

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated bytes."""
        return known(self.statistics(device), _NAMES)

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """Its counters are a stack, which is the program's."""
        return "RMM's peak begins where the program last pushed its statistics, and is the program's to start anew"


def _statistics() -> Any:
    asked = getattr(sys.modules.get("rmm.statistics"), "get_statistics", None)
    return asked() if asked is not None else None
