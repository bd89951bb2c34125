"""torch's caching allocators, one adapter for all device types: cuda (and ROCm, which uses its names), xpu, mps, and
any other accelerator.

Tested so far: the shape of the statistics, the names of the functions, and their behaviour without a driver (torch 2.2
to 2.15). docs/gpu.md lists what was tested on real devices.
"""

from __future__ import annotations

import sys

from hiwater.contrib.devices.torch_doors import Doors
from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status
from hiwater.meters.devices.statistics import leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hiwater.meters.devices.peaks import SharedPeaks

_STATISTICS = {
    "allocated": "allocated_bytes.all",
    "reserved": "reserved_bytes.all",
    "active": "active_bytes.all",
    "requested": "requested_bytes.all",
}


class Torch(Backend):
    """Memory of torch's allocators, `allocated` to tensors and `reserved` from the driver, on each device that this
    process uses."""

    name = "torch"
    library = "torch"
    quantities = ("allocated", "reserved")
    source = "torch's caching allocator"
    cost_us = 25

    def __init__(self) -> None:
        self._doors: dict[str, Doors] = {}
        self._flat: dict[str, tuple[Any, dict[str, int]]] = {}
        self._known: dict[tuple[str, int], Device] = {}
        self._built_for = ""
        self._torch: Any = None

    def status(self) -> Status:
        """Works once the program has initialised a device through torch."""
        torch = sys.modules.get("torch")
        if torch is None:
            return Status(False, "torch is not loaded")
        kinds = self._kinds(torch)
        if not kinds:
            return Status(False, _why_none(torch))
        lacking = [kind for kind in kinds if kind != "mps" and not self._door(torch, kind).there]
        if lacking:
            return Status(False, f"this torch ({torch.__version__}) shows no statistics of {', '.join(lacking)}")
        return Status(True, f"torch {torch.__version__}: {', '.join(kinds)}")

    def devices(self) -> list[Device]:
        """The devices of all types on which this process has a context."""
        torch = sys.modules["torch"]
        found = []
        for kind in self._kinds(torch):
            if kind != "mps" and not self._door(torch, kind).there:
                continue
            for index in _used(torch, kind):
                device = self._known.get((kind, index))
                if device is None:
                    name = f"{kind}:{index}" if kind != "mps" else kind
                    ordinal = index if kind == "cuda" else UNKNOWN
                    device = self._known[kind, index] = Device(
                        self.name, name, index, _uuid(torch, kind, index), ordinal
                    )
                found.append(device)
        return found

    def statistics(self, device: Device) -> dict[str, int]:
        """The flat statistics, as from `torch.cuda.memory_stats()` and its counterparts for other devices."""
        torch, kind = sys.modules["torch"], _kind(device)
        if kind == "mps":
            return _of_mps(torch)
        return dict(leaves(self._door(torch, kind).statistics(device.number)))

    def statistics_at_reset(self, device: Device) -> Mapping[str, int]:
        """The statistics of the last reading of the device's peaks: the same object as long as nothing changed."""
        door = self._door(sys.modules["torch"], _kind(device))
        nested = door.last_read(device.number)
        before = self._flat.get(device.name)
        if before is None or before[0] is not nested:
            before = self._flat[device.name] = nested, door.flat(device.number)
        return before[1]

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated, reserved, active and requested bytes, where this allocator counts them."""
        flat = self.statistics(device)
        found = {}
        for quantity, name in _STATISTICS.items():
            now = flat.get(f"{name}.current", UNKNOWN)
            if now >= 0:
                found[quantity] = Standing(now, flat.get(f"{name}.peak", UNKNOWN))
        return found

    def lifetime_peak(self, device: Device, quantity: str) -> int:
        """The value of `torch.cuda.max_memory_allocated()` and its counterparts."""
        native, kind = super().lifetime_peak(device, quantity), _kind(device)
        if kind == "mps":
            return native
        return max(
            native, self._door(sys.modules["torch"], kind).noted_peak(device.number, self.statistic_of(quantity))
        )

    def segments(self, device: Device) -> list[dict[str, Any]] | None:
        """The segments of a snapshot, without the history of allocations if this torch can omit it."""
        module = getattr(sys.modules["torch"], _kind(device), None)
        if not hasattr(module, "memory_snapshot"):
            return None
        try:
            return segments_of(module, device.number)
        except RuntimeError:  # a pluggable allocator has none
            return None

    def limit_bytes(self, device: Device) -> int:
        """The total memory of the device; for mps, the limit that Metal recommends."""
        torch, kind = sys.modules["torch"], _kind(device)
        if kind == "mps":
            return int(torch.mps.recommended_max_memory()) if hasattr(torch.mps, "recommended_max_memory") else UNKNOWN
        properties = getattr(getattr(torch, kind, None), "get_device_properties", None)
        return int(getattr(properties(device.number), "total_memory", UNKNOWN)) if properties is not None else UNKNOWN

    def shared_peaks(self, device: Device) -> SharedPeaks | None:
        """The device's peaks; mps has none."""
        kind = _kind(device)
        return None if kind == "mps" else self._door(sys.modules["torch"], kind).peaks(device.number)

    def release(self, device: Device) -> None:
        """Restore torch's functions unless the program's peaks still need a correction."""
        kind = _kind(device)
        if kind != "mps":
            self._door(sys.modules["torch"], kind).leave_if_done()

    def refusal(self, device: Device) -> str:
        """Only mps has no peak."""
        return "torch has no peak for mps" if _kind(device) == "mps" else ""

    def statistic_of(self, quantity: str) -> str:
        """`allocated` is `allocated_bytes.all`. Any name from `memory_stats()` that has a peak is valid, without the
        `.peak`."""
        return _STATISTICS.get(quantity, quantity)

    def _door(self, torch: Any, kind: str) -> Doors:
        self._meet(torch)
        found = self._doors.get(kind)
        if found is None:
            found = self._doors[kind] = Doors(torch._C, kind, is_accelerator=self._built_for == kind)
        return found

    def _kinds(self, torch: Any) -> list[str]:
        self._meet(torch)
        kinds = [kind for kind in ("cuda", "xpu") if _is_initialised(getattr(torch, kind, None))]
        if getattr(torch._C, "_has_mps", False) and _mps_is_there(torch):
            kinds.append("mps")
        other = self._built_for
        if other and other not in {"cuda", "xpu", "mps"} and _allocator_is_initialised(torch):
            kinds.append(other)
        return kinds

    def _meet(self, torch: Any) -> None:
        """Reset the state if another torch was loaded, as tests do."""
        if torch is not self._torch:
            self._built_for = _accelerator(torch)
            self._doors, self._known, self._torch = {}, {}, torch


def segments_of(module: Any, number: int) -> list[dict[str, Any]]:
    """The segments of a device by the snapshot of `torch.cuda` or its counterpart, without the history of allocations
    if this torch can omit it. Raises RuntimeError for an allocator without a snapshot."""
    try:
        found = module.memory_snapshot(include_traces=False)
    except TypeError:  # before 2.11
        found = module.memory_snapshot()
    return [segment for segment in found if segment.get("device", 0) == number]


def _kind(device: Device) -> str:
    return device.name.partition(":")[0]


def _is_initialised(module: Any) -> bool:
    is_initialized = getattr(module, "is_initialized", None)
    return bool(is_initialized()) if is_initialized is not None else False


def _accelerator(torch: Any) -> str:
    """The type of device that this torch was built for, or "". Unlike a check whether such a device exists, this
    initialises nothing.

    Only from 2.9 on, where all accelerators have statistics. In 2.6, the first version with this function, it searched
    for a device and raised an error without one.
    """
    if not hasattr(torch._C, "_accelerator_isAllocatorInitialized"):
        return ""
    device = torch.accelerator.current_accelerator()
    return str(device.type) if device is not None else ""


def _allocator_is_initialised(torch: Any) -> bool:
    is_initialized = getattr(torch._C, "_accelerator_isAllocatorInitialized", None)
    return bool(is_initialized()) if is_initialized is not None else False


def _mps_is_there(torch: Any) -> bool:
    """Whether Metal is available: it has no context to initialise."""
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    return mps is not None and bool(mps.is_available())


def _used(torch: Any, kind: str) -> list[int]:
    """Numbers of the devices on which this process has a context: all others would only show zeros."""
    if kind == "mps":
        return [0]
    module: Any = getattr(torch, kind, None)
    count = module.device_count() if hasattr(module, "device_count") else torch.accelerator.device_count()
    has_context = getattr(torch._C, f"_{kind}_hasPrimaryContext", None)
    return [index for index in range(count) if has_context is None or has_context(index)]


def _uuid(torch: Any, kind: str, index: int) -> str:
    if kind != "cuda":
        return ""
    try:
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))  # since 2.3
    except (RuntimeError, AssertionError, AttributeError):  # a missing UUID is no reason to fail
        uuid = ""
    return identity.canonical(uuid) or identity.of_ordinal(index)


def _of_mps(torch: Any) -> dict[str, int]:
    return {
        "allocated_bytes.all.current": int(torch.mps.current_allocated_memory()),
        "reserved_bytes.all.current": int(torch.mps.driver_allocated_memory()),
    }


def _why_none(torch: Any) -> str:
    version = getattr(torch, "version", None)
    is_for_gpu = getattr(version, "cuda", None) is not None or getattr(version, "hip", None) is not None
    if not is_for_gpu and not _accelerator(torch):
        return f"torch {torch.__version__} is built without GPU support, or finds no device"
    return f"torch {torch.__version__} has not initialised a device in this process"
