"""Stand-ins for GPU libraries' counters: a caching allocator with the shape of torch's statistics below torch's own Python code, and
NVML's objects. They count as the real ones are documented to; nothing here has been compared with a real GPU yet."""

import sys
import types

_COUNTED = ("allocation", "segment", "active", "inactive_split")
_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
_ROUNDING = 512
_SMALL = 1 << 20


class Stat:
    """One of torch's statistics: current, peak, allocated, freed."""

    def __init__(self):
        self.current = self.peak = self.allocated = self.freed = 0

    def move(self, change):
        self.current += change
        self.peak = max(self.peak, self.current)
        if change > 0:
            self.allocated += change
        else:
            self.freed -= change

    def shown(self):
        return {name: getattr(self, name) for name in ("current", "peak", "allocated", "freed")}


class Allocator:
    """A device's memory: blocks are rounded up to 512 bytes, freed ones stay reserved until `empty_cache`."""

    def __init__(self, *, private_pools=False):
        self.stats = {
            name: {pool: Stat() for pool in ("all", "small_pool", "large_pool")} for name in (*_COUNTED, *_BYTES)
        }
        self.private_pools = private_pools
        self.blocks = {}
        self.next_block = 1
        self.resets = 0

    def move(self, name, pool, change):
        self.stats[name]["all"].move(change)
        self.stats[name][pool].move(change)

    def alloc(self, size):
        rounded = -(-size // _ROUNDING) * _ROUNDING
        pool = "small_pool" if rounded <= _SMALL else "large_pool"
        lacking = self.now("allocated_bytes") + rounded - self.now("reserved_bytes")
        if lacking > 0:
            self.move("reserved_bytes", pool, lacking)
            self.move("segment", pool, 1)
        for name in ("allocated_bytes", "active_bytes"):
            self.move(name, pool, rounded)
        self.move("requested_bytes", pool, size)
        for name in ("allocation", "active"):
            self.move(name, pool, 1)
        block, self.next_block = self.next_block, self.next_block + 1
        self.blocks[block] = size, rounded, pool
        return block

    def free(self, block):
        size, rounded, pool = self.blocks.pop(block)
        for name in ("allocated_bytes", "active_bytes"):
            self.move(name, pool, -rounded)
        self.move("requested_bytes", pool, -size)
        for name in ("allocation", "active"):
            self.move(name, pool, -1)

    def empty_cache(self):
        for pool in ("small_pool", "large_pool"):
            unused = self.stats["reserved_bytes"][pool].current - self.stats["allocated_bytes"][pool].current
            if unused > 0:
                self.move("reserved_bytes", pool, -unused)

    def now(self, name):
        return self.stats[name]["all"].current

    def reset_peak(self):
        self.resets += 1
        for pools in self.stats.values():
            for stat in pools.values():
                stat.peak = stat.current

    def nested(self):
        """As `torch._C._cuda_memoryStats` gives it."""
        found = {name: {pool: stat.shown() for pool, stat in pools.items()} for name, pools in self.stats.items()}
        found |= {name: Stat().shown() for name in ("oversize_allocations", "oversize_segments")}
        found |= dict.fromkeys(
            ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"), 0
        )
        found["max_split_size"] = -1
        if self.private_pools:  # torch 2.15
            found["num_oom_rejections"] = 0
            found["reserved_bytes_by_private_pools"] = {"0_1": {"large_pool": Stat().shown()}}
        return found


class Cuda:
    """CUDA devices below the real torch's Python code, with simulated allocators."""

    def __init__(self, monkeypatch, count=1, **traits):
        import torch

        self.torch = torch
        self.allocators = [Allocator(**traits) for _ in range(count)]
        self.contexts = set()
        self.current = 0
        self._patch = monkeypatch
        doors = {
            "_cuda_memoryStats": lambda index: self.allocators[index].nested(),
            "_cuda_resetPeakMemoryStats": lambda index: self.allocators[index].reset_peak(),
            "_cuda_hasPrimaryContext": lambda index: index in self.contexts,
            "_cuda_getDevice": lambda: self.current,
            "_cuda_getDeviceCount": lambda: len(self.allocators),
        }
        for name, door in doors.items():
            monkeypatch.setattr(torch._C, name, door, raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.allocators))
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda index: types.SimpleNamespace(total_memory=80 << 30, uuid=f"card-{index}"),
        )

    def initialise(self, *devices):
        self._patch.setattr(self.torch.cuda, "_initialized", True)
        self.contexts.update(devices or {0})

    def __getitem__(self, index):
        return self.allocators[index]


def forget():
    """Have hiwater forget what it knew of libraries: to be called before and after another one is put in place."""
    from hiwater.meters import devices
    from hiwater.scopes import FOLDING

    devices._made.clear()
    devices._names.clear()
    FOLDING._refused.clear()
    for key in [key for key in FOLDING._slots if ":" in key[0]]:
        del FOLDING._slots[key]


class Patch:
    """A monkeypatch for programs of their own: nothing is put back."""

    @staticmethod
    def setattr(target, name, value, raising=True):
        assert hasattr(target, name) or not raising
        setattr(target, name, value)


def small_torch():
    """A module in torch's place that has what reading memory takes, for programs that are to start quickly."""
    torch = types.ModuleType("torch")
    torch.__version__ = "0"
    torch._C = types.SimpleNamespace()
    torch.version = types.SimpleNamespace(cuda="0")
    cuda = torch.cuda = types.ModuleType("torch.cuda")
    cuda._initialized = False
    cuda.is_initialized = lambda: cuda._initialized
    cuda.device_count = cuda.get_device_properties = None
    cuda.max_memory_allocated = lambda device=0: torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["peak"]
    cuda.reset_peak_memory_stats = lambda device=0: torch._C._cuda_resetPeakMemoryStats(device)
    sys.modules["torch"] = torch
    return torch
