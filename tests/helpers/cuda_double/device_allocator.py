"""The caching allocator of one device, in the order of `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`
(torch 2.2 to 2.13).

`malloc` completes frees that waited for a stream (`process_events`), rounds, looks for a free block, asks the driver,
gives cached memory back and asks again, and refuses: event, observers without the lock, then the error. `free` lowers
`allocated`; `free_block`, perhaps later, lowers `active` and `requested`. Left out: `max_split_size`, garbage
collection, captures of CUDA graphs (`private_pool()` stands for both their pools and `MemPool`s), peer access.
"""

import threading
from contextlib import contextmanager

from . import history
from .blocks import Block, ExpandableSegment, Pool, PrivatePool
from .statistics import DeviceStats

MIN_BLOCK, SMALL, SMALL_BUFFER, LARGE_BUFFER, MIN_LARGE, ROUND_LARGE = (
    512,
    1 << 20,
    2 << 20,
    20 << 20,
    10 << 20,
    2 << 20,
)


def round_size(size):
    """`round_size`: multiples of 512 bytes."""
    return max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)


def allocation_size(size):
    """`get_allocation_size`: how much is asked of the driver for a request of `size` bytes that no free block
    satisfies."""
    if size <= SMALL:
        return SMALL_BUFFER
    return LARGE_BUFFER if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE


def format_size(size):
    """`format_size` in the same file."""
    for limit, divisor, unit in ((1 << 10, 1, "bytes"), (1 << 20, 1 << 10, "KiB"), (1 << 30, 1 << 20, "MiB")):
        if size <= limit:
            return f"{size} bytes" if divisor == 1 else f"{size / divisor:.2f} {unit}"
    return f"{size / (1 << 30):.2f} GiB"


class DeviceAllocator:
    """One device. `refused` makes the error for a message; `expandable` is `expandable_segments:True`."""

    def __init__(self, card, refused, *, expandable=False):
        self.card = card
        self.expandable = expandable
        self.stats = DeviceStats()
        self.history = history.History()
        self.snapshots = 0
        """How many were taken."""
        self._refused = refused
        self._lock = threading.RLock()
        self._small, self._large = Pool(True), Pool(False)
        self._blocks = {}  # by address: all, free or not, mapped or not
        self._events = []  # (block, stream): frees that wait
        self._pools = {}
        self._current = []  # private pools into which this allocates, innermost last
        self._taken = 0
        self._allowed = None

    # What programs call

    def malloc(self, size, stream=0):
        """The address of a new block. Raises what `refused` makes."""
        context = self.history.gather(history.STATE)
        with self._lock:
            self._process_events(context)
            rounded = round_size(size)
            pool = self._pool(rounded)
            asked = allocation_size(rounded)
            block = pool.best_fit(stream, rounded)
            if block is not None:
                pool.blocks.remove(block)
            else:
                block = self._from_driver(pool, stream, rounded, asked, context)
            if block is not None:
                return self._found(block, rounded, size, context).address
            refusal = self._note_refusal(rounded, stream, pool, asked, context)
        return self._refuse(asked, *refusal)

    def free(self, address):
        """Free a block; where another stream has used it, it waits for `finish` and the next `malloc`."""
        context = self.history.gather(history.ALL)
        with self._lock:
            block = self._blocks[address]
            assert block.allocated, "freed twice"
            block.allocated = False
            self.stats.change("allocation", block.pool.is_small, -1)
            self.stats.change("allocated_bytes", block.pool.is_small, -block.size)
            self._trace("free_requested", block, block.requested_size, context or block.context)
            if block.stream_uses:
                block.event_count = len(block.stream_uses)
                self._events += [(block, stream) for stream in block.stream_uses]
                block.stream_uses = set()
            else:
                self._free_block(block, context)

    def record_stream(self, address, stream):
        """`recordStream`: another stream uses the block."""
        block = self._blocks[address]
        if stream != block.stream:
            block.stream_uses.add(stream)

    def finish(self, *streams):
        """The work of these streams (or of all) is done: `cudaEventQuery` says so from now on."""
        self._events = [(block, None if not streams or stream in streams else stream) for block, stream in self._events]

    def empty_cache(self):
        """`emptyCache`."""
        context = self.history.gather(history.ALL)
        with self._lock:
            self._release_cached(context)

    def set_fraction(self, fraction):
        """`setMemoryFraction`."""
        self._allowed = int(fraction * self.card.total_bytes) if fraction < 1.0 else None

    @contextmanager
    def private_pool(self, identity=(0, 1)):
        """Allocate into a private pool within the block; its memory stays with the pool until `drop_pool`."""
        pool = self._pools.setdefault(identity, PrivatePool(identity))
        self._current.append(pool)
        try:
            yield pool
        finally:
            self._current.pop()

    def drop_pool(self, identity=(0, 1)):
        """`releasePool`: nobody uses the pool any more; `empty_cache` may give its memory back."""
        self._pools[identity].use_count = 0

    def snapshot(self, *, traces=True):
        """(segments, events) as `THCPModule_memorySnapshot` gives them; taking it is an event itself."""
        with self._lock:
            self.snapshots += 1
            segments = self._shown_segments()
            active = sum(segment["active_size"] for segment in segments)
            self.history.trace("snapshot", 0, active, 0, None, None)
            return segments, self.history.shown() if traces else []

    @property
    def live(self):
        """Bytes asked for, by the address of each block that is allocated."""
        return {block.address: block.requested_size for block in self._blocks.values() if block.allocated}

    @property
    def active(self):
        """The same with those that wait for a stream."""
        return {
            block.address: block.requested_size
            for block in self._blocks.values()
            if block.allocated or block.event_count
        }

    def now(self, name, pool="all"):
        """The current value of one counter."""
        return self.stats.arrays[name][pool].current

    # The parts of malloc

    def _pool(self, rounded):
        private = self._current[-1] if self._current else None
        small, large = (private.small, private.large) if private is not None else (self._small, self._large)
        return small if rounded <= SMALL else large

    def _from_driver(self, pool, stream, rounded, asked, context):
        """`alloc_block`, then once more after `release_cached_blocks`."""
        block = self._alloc_block(pool, stream, rounded, asked, context)
        if block is None:
            self._release_cached(context)
            self.stats.scalars["num_alloc_retries"] += 1
            block = self._alloc_block(pool, stream, rounded, asked, context)
        return block

    def _alloc_block(self, pool, stream, rounded, asked, context):
        if self._allowed is not None and self._taken + asked > self._allowed:
            return None
        if self.expandable:
            return self._map_for(pool, stream, rounded, context)
        if not self.card.take(asked):
            return None
        block = self._new(Block(self.card.reserve_addresses(asked), asked, stream, pool))
        self._taken += asked
        self.stats.change("segment", pool.is_small, 1)
        self.stats.change_reserved(pool, asked)
        self.stats.scalars["num_device_alloc"] += 1
        self._trace("segment_alloc", block, asked, context)
        block.segment_context = context
        return block

    def _found(self, block, rounded, size, context):
        """`alloc_found_block`."""
        small, was_split = block.pool.is_small, block.is_split
        rest = block.size - rounded
        if rest >= MIN_BLOCK if small or self.expandable else rest > SMALL:
            remaining = block
            block = self._split(remaining, rounded)
            remaining.pool.blocks.append(remaining)
            if was_split and not block.segment:
                self.stats.change("inactive_split_bytes", small, -block.size)
            elif not block.segment:
                self.stats.change("inactive_split_bytes", small, remaining.size)
                self.stats.change("inactive_split", small, 1)
        elif was_split and not block.segment:
            self.stats.change("inactive_split_bytes", small, -block.size)
            self.stats.change("inactive_split", small, -1)
        block.allocated, block.requested_size, block.context = True, size, context
        self._trace("alloc", block, size, context)
        for name, amount in (("allocation", 1), ("allocated_bytes", block.size), ("active", 1)):
            self.stats.change(name, small, amount)
        self.stats.change("active_bytes", small, block.size)
        self.stats.change("requested_bytes", small, size)
        return block

    def _note_refusal(self, rounded, stream, pool, asked, context):
        """What is recorded, under the lock, before observers are called. The event has the rounded size, not the
        segment's."""
        free = self.card.free_bytes
        self.history.trace("oom", free, rounded, stream, pool, context)
        self.stats.scalars["num_ooms"] += 1
        return free, self.now("allocated_bytes"), self.now("reserved_bytes"), list(self.history.observers)

    def _refuse(self, asked, free, allocated, reserved, observers):
        """Observers and the message are told the size of the segment that was asked for; the lock is not held."""
        number, total = self.card.number, self.card.total_bytes
        for observer in observers:
            observer(number, asked, self._allowed if self._allowed is not None else total, free)
        private = sum(block.size for pool in self._pools.values() for block in (*pool.large.blocks, *pool.small.blocks))
        of_pools = f"with {format_size(private)} allocated in private pools (e.g., CUDA Graphs), " if private else ""
        allowed = f"{format_size(self._allowed)} allowed; " if self._allowed is not None else ""
        raise self._refused(
            f"CUDA out of memory. Tried to allocate {format_size(asked)}. GPU {number} has a total capacity "
            f"of {format_size(total)} "
            f"of which {format_size(free)} is free. Including non-PyTorch memory, this process has "
            f"{format_size(self.card.mapped_bytes + self.card.context_bytes)} memory in use. {allowed}Of the "
            "allocated memory "
            f"{format_size(allocated + private)} is allocated by PyTorch, {of_pools}and "
            f"{format_size(max(0, reserved - allocated - private))} "
            "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
            "Memory Management "
            " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )

    # The parts of free

    def _process_events(self, context):
        """Frees whose streams are done become complete."""
        waiting, self._events = self._events, []
        for block, stream in waiting:
            if stream is not None:
                self._events.append((block, stream))
                continue
            block.event_count -= 1
            if block.event_count == 0:
                self._free_block(block, context)

    def _free_block(self, block, context):
        self._trace("free_completed", block, block.requested_size, context or block.context)
        block.context = None
        size, small = block.size, block.pool.is_small
        splits = split_bytes = 0
        for neighbour in (block.previous, block.next):
            joined = self._merge(block, neighbour)
            if joined:
                splits, split_bytes = splits - 1, split_bytes - joined
        block.pool.blocks.append(block)
        if block.is_split:
            splits, split_bytes = splits + 1, split_bytes + block.size
        if not block.segment:
            self.stats.change("inactive_split", small, splits)
            self.stats.change("inactive_split_bytes", small, split_bytes)
        self.stats.change("active", small, -1)
        self.stats.change("active_bytes", small, -size)
        self.stats.change("requested_bytes", small, -block.requested_size)

    def _merge(self, block, other):
        """`try_merge_blocks`: take a free neighbour in; how many bytes that were."""
        if other is None or other.allocated or other.event_count or other.stream_uses or other.mapped != block.mapped:
            return 0
        if other is block.previous:
            del self._blocks[block.address], self._blocks[other.address]
            block.address = other.address
            block.segment_context = other.segment_context
            block.put_between(other.previous, block.next)
            self._blocks[block.address] = block
        else:
            del self._blocks[other.address]
            block.put_between(block.previous, other.next)
        block.size += other.size
        (other.pool.blocks if other.mapped else other.pool.unmapped).remove(other)
        return other.size

    def _release_cached(self, context):
        """`release_cached_blocks`: waits for all streams, then gives back what is wholly free."""
        self.finish()
        self._process_events(context)
        pools = [self._small, self._large]
        for private in self._pools.values():
            if not private.use_count:
                pools += [private.small, private.large]
        for pool in pools:
            for block in list(pool.blocks):
                if block.segment:
                    self._unmap(block, context)
                elif not block.is_split:
                    self._release(block, context)

    def _release(self, block, context):
        """`release_block`."""
        self._trace("segment_free", block, block.size, context or block.segment_context)
        self.card.give(block.size)
        self._taken -= block.size
        self.stats.scalars["num_device_free"] += 1
        self.stats.change("segment", block.pool.is_small, -1)
        self.stats.change_reserved(block.pool, -block.size)
        block.pool.blocks.remove(block)
        del self._blocks[block.address]

    # Expandable segments

    def _map_for(self, pool, stream, rounded, context):
        """`try_allocate_expandable_block`: map pages until a free block is large enough."""
        block = self._expandable_room(pool, stream, rounded)
        if not block.mapped:
            block = self._map(block, min(block.size, rounded), context)
        while block is not None and block.size < rounded:
            block = self._map(block.next, min(rounded - block.size, block.next.size), context)
        if block is not None:
            pool.blocks.remove(block)
        return block

    def _expandable_room(self, pool, stream, rounded):
        """`find_expandable_block`: free and unmapped neighbours that would do together; else a new segment, all of
        it unmapped."""
        for block in sorted(pool.unmapped, key=lambda one: one.address):
            free = block.previous if block.previous is not None and block.previous in pool.blocks else None
            if block.stream == stream and (free.size if free else 0) + block.size >= rounded:
                return free or block
        size = -(-self.card.total_bytes * 9 // 8 // LARGE_BUFFER) * LARGE_BUFFER
        page = SMALL_BUFFER if pool.is_small else LARGE_BUFFER
        block = self._new(Block(self.card.reserve_addresses(size), size, stream, pool))
        block.segment, block.mapped = ExpandableSegment(block.address, size, page), False
        pool.unmapped.append(block)
        return block

    def _map(self, block, size, context):
        """`map_block`; None where the driver has no more."""
        address, mapped = block.segment.whole_pages(block.address, size, outwards=True)
        if not self.card.take(mapped):
            return None
        if mapped < block.size:
            rest = block
            block = self._split(rest, mapped)
        else:
            block.pool.unmapped.remove(block)
        block.mapped = True
        for neighbour in (block.previous, block.next):
            self._merge(block, neighbour)
        block.pool.blocks.append(block)
        self._taken += mapped
        self.stats.change_reserved(block.pool, mapped)
        self.stats.scalars["num_device_alloc"] += 1
        self.history.trace("segment_map", address, mapped, block.stream, block.pool, context)
        if block.previous is None and block.segment_context is None:
            block.segment_context = context
        return block

    def _unmap(self, block, context):
        """`unmap_block`: whole free pages go back, in the middle of a segment, too."""
        address, size = block.segment.whole_pages(block.address, block.size, outwards=False)
        if not size:
            return
        block.pool.blocks.remove(block)
        if address > block.address:
            before = self._split(block, address - block.address)
            before.pool.blocks.append(before)
        if block.size > size:
            middle = self._split(block, size)
            block.pool.blocks.append(block)
            block = middle
        block.mapped = False
        for neighbour in (block.previous, block.next):
            self._merge(block, neighbour)
        block.pool.unmapped.append(block)
        self.card.give(size)
        self._taken -= size
        self.stats.change_reserved(block.pool, -size)
        self.stats.scalars["num_device_free"] += 1
        self.history.trace("segment_unmap", address, size, block.stream, block.pool, context or block.segment_context)

    # Blocks by address, and how they are shown

    def _new(self, block):
        self._blocks[block.address] = block
        return block

    def _split(self, block, size):
        head = block.split_head(size)
        self._blocks[head.address], self._blocks[block.address] = head, block
        return head

    def _trace(self, action, block, size, context):
        self.history.trace(action, block.address, size, block.stream, block.pool, context)

    def _shown_segments(self):
        """`snapshot`: each contiguous mapped range is a segment."""
        heads = [
            block
            for block in sorted(self._blocks.values(), key=lambda one: one.address)
            if block.mapped and (block.previous is None or not block.previous.mapped)
        ]
        return [self._shown_segment(head) for head in heads]

    def _shown_segment(self, head):
        blocks, block = [], head
        while block is not None and block.mapped:
            active = block.allocated or block.event_count > 0 or bool(block.stream_uses)
            state = "active_allocated" if block.allocated else "active_pending_free" if active else "inactive"
            blocks.append(
                {
                    "address": block.address, "size": block.size, "requested_size": block.requested_size,
                    "state": state, "frames": list(block.context or ()),
                }
            )  # fmt: skip
            block = block.next
        active = [block for block in blocks if block["state"] != "inactive"]
        return {
            "device": self.card.number, "address": head.address, "total_size": sum(block["size"] for block in blocks),
            "allocated_size": sum(block["size"] for block in active if block["state"] == "active_allocated"),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in active),
            "stream": head.stream, "segment_type": "small" if head.pool.is_small else "large",
            "segment_pool_id": head.pool.private.id if head.pool.private else (0, 0),
            "is_expandable": head.segment is not None, "frames": list(head.segment_context or ()), "blocks": blocks,
        }  # fmt: skip
