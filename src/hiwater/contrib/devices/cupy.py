"""CuPy: its default memory pool, which has no peak. Not yet tested on a real GPU."""

from __future__ import annotations

import gc
import sys

from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Cupy(Backend):
    """Memory of CuPy's default pool: `allocated` to arrays, and `reserved` from the driver.

    The default pool contains one pool for each device. Its methods use the current device of the calling thread, which is device 0 in
    threads of hiwater. Such a call may create a pool, or even a context if the limit is a fraction; so may a change of the current
    device. Therefore this backend calls the pools of single devices, which do not depend on the current device.
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
            return Status(False, "CuPy is not completely loaded")  # during its import
        if not self.devices():
            return Status(False, f"the default pool of CuPy {cupy.__version__} is empty in this process")
        return Status(True, f"CuPy {cupy.__version__}")

    def devices(self) -> list[Device]:
        """Devices on which the pool has had memory."""
        self._seen.update(number for number, pool in _pools().items() if pool.total_bytes() > 0)
        return [
            Device(self.name, f"cuda:{number}", number, identity.of_ordinal(number), number)
            for number in sorted(self._seen)
        ]

    def statistics(self, device: Device) -> dict[str, int]:
        """The figures of the device's pool, by the names of its methods."""
        pool = _pools()[device.number]
        return {name: int(getattr(pool, name)()) for name in ("used_bytes", "total_bytes", "free_bytes", "get_limit")}

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated and reserved bytes; there is no peak."""
        figures = self.statistics(device)
        return {"allocated": Standing(figures["used_bytes"]), "reserved": Standing(figures["total_bytes"])}

    def limit_bytes(self, device: Device) -> int:
        """The limit that was set for the pool."""
        return self.statistics(device)["get_limit"] or UNKNOWN

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """CuPy's pools have no peak."""
        return "CuPy's pool has no peak, so it is read when a scope begins or ends, not between"


def _pools() -> dict[int, Any]:
    """The pools of single devices in the default pool, by CUDA's number. The program has created them by using the devices.

    CuPy has no function for them. They are in an attribute that Python cannot read (a dict up to CuPy 13, a sequence in 14), but the
    garbage collector lists what the pool refers to.
    """
    cupy: Any = sys.modules["cupy"]
    kind = cupy.cuda.memory.SingleDeviceMemoryPool
    found = {}
    for part in gc.get_referents(cupy.get_default_memory_pool()):
        if isinstance(part, dict | list | tuple):
            inside = tuple(part.values() if isinstance(part, dict) else part)
            found.update({int(pool._device_id): pool for pool in inside if isinstance(pool, kind)})
    return found
