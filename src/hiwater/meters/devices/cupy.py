"""CuPy: its default memory pool, which keeps no peak. Not seen on a real GPU."""

from __future__ import annotations

import gc
import sys

from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Cupy(Backend):
    """Memory that CuPy's default pool handed out (`allocated`) and holds (`reserved`).

    The pool has one pool for each device, and its methods answer for the device that is current in the calling thread: in another thread
    than the program's that is device 0. Asking there may make a pool, with a limit given as a share even a context; and so may making
    another device current, or the one before it current again. So its parts are asked themselves, which look at no current device.
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
        self._seen.update(number for number, pool in _pools().items() if pool.total_bytes() > 0)
        return [
            Device(self.name, f"cuda:{number}", number, identity.of_ordinal(number), number)
            for number in sorted(self._seen)
        ]

    def statistics(self, device: Device) -> dict[str, int]:
        """The figures of the device's pool, by its methods' names."""
        pool = _pools()[device.number]
        return {name: int(getattr(pool, name)()) for name in ("used_bytes", "total_bytes", "free_bytes", "get_limit")}

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


def _pools() -> dict[int, Any]:
    """The pools of single devices in the default pool, by CUDA's number: those that the program has made by using it.

    CuPy has no function for them: they are in an attribute that only C sees (a dict up to CuPy 13, a sequence in 14), and the garbage
    collector, which tells what an object refers to.
    """
    cupy: Any = sys.modules["cupy"]
    kind = cupy.cuda.memory.SingleDeviceMemoryPool
    found = {}
    for part in gc.get_referents(cupy.get_default_memory_pool()):
        if isinstance(part, dict | list | tuple):
            inside = tuple(part.values() if isinstance(part, dict) else part)
            found.update({int(pool._device_id): pool for pool in inside if isinstance(pool, kind)})
    return found
