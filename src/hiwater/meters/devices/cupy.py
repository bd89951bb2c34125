"""CuPy: its default memory pool, which keeps no peak. Not seen on a real GPU."""

from __future__ import annotations

import sys

from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Cupy(Backend):
    """Memory that CuPy's default pool handed out (`allocated`) and holds (`reserved`).

    A pool answers for the device that is current in the calling thread, and making another one current would give it a context. So a
    device is known from the first time that it was current when we looked.
    """

    name = "cupy"
    library = "cupy"
    quantities = ("allocated", "reserved")
    source = "CuPy's default memory pool"

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def status(self) -> Status:
        """Works once the pool holds memory."""
        cupy = sys.modules.get("cupy")
        if cupy is None:
            return Status(False, "CuPy is not loaded")
        if not hasattr(cupy, "get_default_memory_pool"):
            return Status(False, "CuPy is not loaded wholly")  # in the middle of its import
        if not self.devices():
            return Status(False, f"CuPy {cupy.__version__}'s default pool holds nothing in this process")
        return Status(True, f"CuPy {cupy.__version__}")

    def devices(self) -> list[Device]:
        """Devices on which the pool was seen to hold memory."""
        cupy: Any = sys.modules["cupy"]
        try:
            if cupy.get_default_memory_pool().total_bytes() > 0:
                self._seen.add(int(cupy.cuda.runtime.getDevice()))
        except Exception as error:  # noqa: BLE001 - without a driver CuPy raises its own classes
            del error
            return []
        return [Device(self.name, f"cuda:{index}", index) for index in sorted(self._seen)]

    def statistics(self, device: Device) -> dict[str, int]:
        """The pool's figures by its methods' names."""
        cupy: Any = sys.modules["cupy"]
        with cupy.cuda.Device(device.number):
            pool = cupy.get_default_memory_pool()
            return {
                name: int(getattr(pool, name)()) for name in ("used_bytes", "total_bytes", "free_bytes", "get_limit")
            }

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated and reserved bytes; there is no peak."""
        figures = self.statistics(device)
        return {"allocated": Standing(figures["used_bytes"]), "reserved": Standing(figures["total_bytes"])}

    def limit_bytes(self, device: Device) -> int:
        """What the pool was told to stay below."""
        return self.statistics(device)["get_limit"] or UNKNOWN

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """CuPy's pools count nothing of the past."""
        return "CuPy's pool keeps no peak: it is read when a scope begins or ends, not between"
