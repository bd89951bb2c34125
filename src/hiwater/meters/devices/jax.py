"""JAX: what each local device's allocator says of itself. It has a peak since the process began, which cannot be started anew.

Seen so far: JAX 0.10 on a CPU, whose devices say nothing. The names of the figures on a GPU are from its documentation and not seen.
"""

from __future__ import annotations

import sys

from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status, known, leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = {
    "allocated": ("bytes_in_use", "peak_bytes_in_use"),
    "reserved": ("pool_bytes", "peak_pool_bytes"),
}
_GPUS = frozenset({"gpu", "cuda", "rocm"})


class Jax(Backend):
    """Memory that JAX's allocator handed out; what it holds (`reserved`) where it tells. By default JAX takes 3/4 of the device at once."""

    name = "jax"
    library = "jax"
    quantities = ("allocated", "reserved")
    source = "JAX, Device.memory_stats()"

    def __init__(self) -> None:
        self._tells: dict[str, bool] = {}  # whether a device's allocator does never changes

    def status(self) -> Status:
        """Works once a device of JAX's has been used that tells its memory; its CPU does not."""
        jax = sys.modules.get("jax")
        if jax is None:
            return Status(False, "JAX is not loaded")
        if not _is_initialised():
            return Status(False, f"JAX {jax.__version__} has not initialised a device in this process")
        if not self.devices():
            return Status(False, f"JAX {jax.__version__} has no device here that tells its memory: its CPU does not")
        return Status(True, f"JAX {jax.__version__}")

    def devices(self) -> list[Device]:
        """Local devices whose allocator tells of itself."""
        found = []
        for device in _local_devices():
            name = f"{device.platform}:{device.id}"
            if name not in self._tells:
                self._tells[name] = bool(device.memory_stats())
            if self._tells[name]:
                found.append(_device(device, name))
        return found

    def statistics(self, device: Device) -> dict[str, int]:
        """`Device.memory_stats()`; figures that JAX gives as −1 are unknown, and left out."""
        for each in _local_devices():
            if f"{each.platform}:{each.id}" == device.name:
                return {name: value for name, value in leaves(each.memory_stats() or {}) if value >= 0}
        return {}

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated bytes, and reserved ones where the allocator is a pool that tells."""
        return known(self.statistics(device), _NAMES)

    def limit_bytes(self, device: Device) -> int:
        """What the allocator may take."""
        return self.statistics(device).get("bytes_limit", UNKNOWN)

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """JAX has no function for it."""
        return "JAX's peak is that of the process so far and cannot be started anew"


def _device(device: Any, name: str) -> Device:
    """`id` counts the devices of all processes of a job; `local_hardware_id` is CUDA's number in this one."""
    local = getattr(device, "local_hardware_id", None)
    if device.platform not in _GPUS or local is None:
        return Device("jax", name, device.id)
    return Device("jax", name, device.id, identity.of_ordinal(local), local)


def _is_initialised() -> bool:
    """Without asking JAX anything that would initialise it."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    asked = getattr(bridge, "backends_are_initialized", None)
    return bool(asked()) if asked is not None else False


def _local_devices() -> list[Any]:
    return list(sys.modules["jax"].local_devices()) if _is_initialised() else []
