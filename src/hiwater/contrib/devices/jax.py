"""JAX: the memory statistics of each local device. Their peak covers the whole process and cannot be reset.

Tested so far: JAX 0.10 on a CPU, whose devices have no statistics. The names of the figures on a GPU are from JAX's
documentation.
"""

from __future__ import annotations

import sys

from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status, known
from hiwater.meters.devices.statistics import leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = {
    "allocated": ("bytes_in_use", "peak_bytes_in_use"),
    "reserved": ("pool_bytes", "peak_pool_bytes"),
}
_GPUS = frozenset({"gpu", "cuda", "rocm"})


class Jax(Backend):
    """Memory of JAX's allocator: `allocated`, and `reserved` where it is known. By default, JAX reserves 3/4 of the
    device at its start."""

    name = "jax"
    library = "jax"
    quantities = ("allocated", "reserved")
    source = "JAX, Device.memory_stats()"

    def __init__(self) -> None:
        self._has_statistics: dict[str, bool] = {}  # by device; never changes

    def status(self) -> Status:
        """Works once the program has used a JAX device with memory statistics; a CPU device has none."""
        jax = sys.modules.get("jax")
        if jax is None:
            return Status(False, "JAX is not loaded")
        if _client() is None:
            return Status(False, f"JAX {jax.__version__} has not initialised a device in this process")
        if not self.devices():
            return Status(
                False, f"JAX {jax.__version__} has no device with memory statistics here: its CPU devices have none"
            )
        return Status(True, f"JAX {jax.__version__}")

    def devices(self) -> list[Device]:
        """Local devices with memory statistics."""
        found = []
        for device in _local_devices():
            name = f"{device.platform}:{device.id}"
            if name not in self._has_statistics:
                self._has_statistics[name] = bool(device.memory_stats())
            if self._has_statistics[name]:
                found.append(_device(device, name))
        return found

    def statistics(self, device: Device) -> dict[str, int]:
        """`Device.memory_stats()` without unknown figures, which are −1 in JAX."""
        for each in _local_devices():
            if f"{each.platform}:{each.id}" == device.name:
                return {name: value for name, value in leaves(each.memory_stats() or {}) if value >= 0}
        return {}

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated bytes, and reserved bytes where the allocator has them."""
        return known(self.statistics(device), _NAMES)

    def limit_bytes(self, device: Device) -> int:
        """The limit of the allocator."""
        return self.statistics(device).get("bytes_limit", UNKNOWN)

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """JAX has no function that resets the peak."""
        return "JAX's peak covers the whole process so far and cannot be reset"


def _device(device: Any, name: str) -> Device:
    """`id` counts the devices of all processes of a job; `local_hardware_id` is CUDA's number in this one."""
    local = getattr(device, "local_hardware_id", None)
    if device.platform not in _GPUS or local is None:
        return Device("jax", name, device.id)
    return Device("jax", name, device.id, identity.of_ordinal(local), local)


def _client() -> Any:
    """The client of JAX's default backend; None as long as JAX has not initialised its backends.

    This calls no function of JAX in Python. These take locks, and our code may come in the middle of one that has such
    a lock: in that of the backends, for example, while JAX starts a thread.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    lock = getattr(bridge, "_backend_lock", None)
    if lock is None or not lock.acquire(blocking=False):
        return None
    lock.release()
    return getattr(bridge, "_default_backend", None)


def _local_devices() -> list[Any]:
    client = _client()
    return list(client.local_devices()) if client is not None else []


def memory_profile() -> bytes | None:
    """JAX's profile of device memory, if the program has used a JAX device other than the CPU."""
    client = _client()
    if client is None or all(device.platform == "cpu" for device in client.local_devices()):
        return None  # the figures of host memory include the buffers of the CPU
    profile: bytes = sys.modules["jax"].profiler.device_memory_profile(client)
    return profile
