"""Counters of one device: `c10/core/Allocator.h` (`CachingAllocator::Stat`) and `c10/core/CachingDeviceAllocator.h`
(`DeviceStats`)."""

ARRAYS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
"""Counters that exist once for all pools, once for small blocks and once for large ones."""
SCALARS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
_POOLS = ("all", "small_pool", "large_pool")


class Stat:
    """`Stat`: `increase` raises the peak, `decrease` leaves it, and the totals go up only."""

    def __init__(self):
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount):
        self.current += amount
        self.peak = max(self.current, self.peak)
        self.allocated += amount

    def decrease(self, amount):
        self.current -= amount
        self.freed += amount

    def shown(self):
        """As `statToDict` in `torch/csrc/cuda/Module.cpp` gives it."""
        return {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}


class DeviceStats:
    """All counters of one device."""

    def __init__(self):
        self.arrays = {name: {pool: Stat() for pool in _POOLS} for name in ARRAYS}
        self.oversize = {"oversize_allocations": Stat(), "oversize_segments": Stat()}
        self.scalars = dict.fromkeys(SCALARS, 0)
        self.private = {}  # the id of a private pool: {pool: Stat}

    def change(self, name, small, amount):
        """Add to one counter, in both of its pools (`for_each_selected_stat_type`)."""
        for pool in ("all", "small_pool" if small else "large_pool"):
            stat = self.arrays[name][pool]
            stat.increase(amount) if amount >= 0 else stat.decrease(-amount)

    def change_reserved(self, pool, amount):
        """Reserved bytes, which are counted for each private pool, too."""
        self.change("reserved_bytes", pool.is_small, amount)
        if pool.private is not None:
            stats = self.private.setdefault(pool.private.id, {name: Stat() for name in _POOLS})
            for name in ("all", "small_pool" if pool.is_small else "large_pool"):
                stats[name].increase(amount) if amount >= 0 else stats[name].decrease(-amount)

    def reset_peak(self):
        """`DeviceCachingAllocator::resetPeakStats`: the peaks of all counters at once."""
        for stat in self._all():
            stat.peak = stat.current

    def reset_accumulated(self):
        """`DeviceCachingAllocator::resetAccumulatedStats`: totals go back to 0, simple counters too."""
        for stat in self._all():
            stat.allocated = stat.freed = 0
        self.scalars = dict.fromkeys(SCALARS, 0)

    def nested(self, *, private_pools):
        """As `THCPModule_memoryStats` gives it. `private_pools`: torch 2.13 and later, keyed by tuples."""
        found = dict(self.scalars)
        found["max_split_size"] = -1
        found |= {name: {pool: stat.shown() for pool, stat in pools.items()} for name, pools in self.arrays.items()}
        found |= {name: stat.shown() for name, stat in self.oversize.items()}
        if private_pools:
            found["num_oom_rejections"] = 0
            found["reserved_bytes_by_private_pools"] = {
                identity: {pool: stat.shown() for pool, stat in pools.items()}
                for identity, pools in self.private.items()
            }
        return found

    def _all(self):
        for pools in (*self.arrays.values(), *self.private.values()):
            yield from pools.values()
        yield from self.oversize.values()
