"""The allocator backends: torch's own, the driver's pools, and one that the program plugged in, with what each refuses.

`NativeCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, `CudaMallocAsyncAllocator` in
`c10/cuda/CUDAMallocAsyncAllocator.cpp`, `CUDAPluggableAllocator` in `torch/csrc/cuda/CUDAPluggableAllocator.cpp`, and
the defaults of `CUDAAllocator` in `c10/cuda/CUDACachingAllocator.h`. RMM is a pluggable one.
"""

from .device_allocator import DeviceAllocator
from .statistics import DeviceStats


class Native:
    """`backend:native`. There are no device allocators before `init`, so what is asked then reaches none."""

    name = "native"

    def __init__(self, cards, refused, *, expandable=False):
        self._made = [DeviceAllocator(card, refused, expandable=expandable) for card in cards]
        self.devices = []
        self.history_enabled = False

    def init(self):
        self.devices = self._made

    @property
    def initialized(self):
        return bool(self.devices)

    def allocator(self, device):
        """The allocator of a device. Raises RuntimeError before `init` (`assertValidDevice`)."""
        if not 0 <= device < len(self.devices):
            raise RuntimeError(f"Allocator not initialized for device {device}: did you call init?")
        return self.devices[device]

    def malloc(self, device, size, stream):
        return self.allocator(device).malloc(size, stream)

    def free(self, address):
        for allocator in self.devices:
            if address in allocator.live:
                return allocator.free(address)
        raise RuntimeError(f"invalid device pointer: {address:#x}")

    def empty_cache(self):
        for allocator in self.devices:
            allocator.empty_cache()

    def set_fraction(self, fraction, device):
        self.allocator(device).set_fraction(fraction)

    def statistics(self, device, *, private_pools):
        return self.allocator(device).stats.nested(private_pools=private_pools)

    def reset_peak(self, device):
        self.allocator(device).stats.reset_peak()

    def reset_accumulated(self, device):
        self.allocator(device).stats.reset_accumulated()

    def record_history(self, *wanted):
        """`recordHistory`: of all device allocators that there are."""
        self.history_enabled = wanted[0]
        for allocator in self.devices:
            allocator.history.record(*wanted)

    def is_history_enabled(self):
        return self.history_enabled

    def attach_observer(self, observer):
        for allocator in self.devices:
            allocator.history.observers.append(observer)

    def snapshot(self, *, traces):
        found = [allocator.snapshot(traces=traces) for allocator in self.devices]
        return [segment for segments, _ in found for segment in segments], [events for _, events in found]


class _Lacking:
    """What a backend does not have raises RuntimeError, with torch's words."""

    def _lacks(self, what):
        raise RuntimeError(
            f"{self.spoken_name} does not yet support {what}. If you need it, please file an issue describing "
            "your use case."
        )

    def record_history(self, *_):
        self._lacks("recordHistory")

    def is_history_enabled(self):
        self._lacks("recordHistory")

    def attach_observer(self, _):
        self._lacks("attachOutOfMemoryObserver")


class _PassedOn(_Lacking):
    """Memory that goes straight to the card, block by block."""

    refusal = ""
    """What it says where the card has no more; `{device}` is its number."""

    def __init__(self, cards, refused):
        self._cards, self._refused, self._live = cards, refused, {}
        self.initialized = False

    def init(self):
        self.initialized = True

    def malloc(self, device, size, stream):
        card = self._cards[device]
        if not card.take(size):
            raise self._refused(self.refusal.format(device=device))
        address = card.reserve_addresses(size)
        self._live[address] = device, size
        self._change(device, size)
        return address

    def free(self, address):
        device, size = self._live.pop(address)
        self._cards[device].give(size)
        self._change(device, -size)

    def _change(self, device, amount):
        """What it counts changes by `amount`."""


class MallocAsync(_PassedOn):
    """`backend:cudaMallocAsync`: the driver's pool knows what is used and reserved, with marks, and nothing else."""

    name = spoken_name = "cudaMallocAsync"

    refusal = "Allocation on device {device} would exceed allowed memory. (out of memory)"

    def __init__(self, cards, refused):
        super().__init__(cards, refused)
        self._pools = [DeviceStats() for _ in cards]

    def empty_cache(self):
        """`cudaMemPoolTrimTo`: nothing is cached here."""

    def set_fraction(self, fraction, device):
        """Not followed here."""

    def statistics(self, device, *, private_pools):
        """Only the sums of all pools are set; totals (`allocated`, `freed`) are never counted."""
        found = self._pools[device].nested(private_pools=private_pools)
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
            for pool, figures in found[name].items():
                figures.update({"allocated": 0, "freed": 0} | ({} if pool == "all" else {"current": 0, "peak": 0}))
        return found

    def reset_peak(self, device):
        self._pools[device].reset_peak()

    def reset_accumulated(self, device):
        """Warns, once, that it has no effect."""

    def snapshot(self, *, traces):
        raise RuntimeError(
            "Calling snapshot with backend:cudaMallocAsync is not meaningful. (For backend:native, snapshot "
            "returns a detailed summary of all "
            "blocks tracked by the allocator, but the cudaMallocAsync backend does not track individual blocks.)"
        )

    def _change(self, device, amount):
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
            self._pools[device].change(name, False, amount)


class Pluggable(_PassedOn):
    """`CUDAPluggableAllocator`: knows sizes, and refuses every other question."""

    name, spoken_name = "pluggable", "CUDAPluggableAllocator"

    refusal = "std::bad_alloc: out_of_memory"

    def empty_cache(self):
        """Calls the program's function, where it set one."""

    def set_fraction(self, fraction, device):
        """The same."""

    def statistics(self, device, *, private_pools):
        self._lacks("getDeviceStats")

    def reset_peak(self, device):
        self._lacks("resetPeakStats")

    def reset_accumulated(self, device):
        self._lacks("resetAccumulatedStats")

    def snapshot(self, *, traces):
        self._lacks("snapshot")


KINDS = {"native": Native, "cudaMallocAsync": MallocAsync, "pluggable": Pluggable}
