"""A model of PyTorch's caching allocator for CUDA: what it reserves for a given order of requests.

The rules and the constants are those of `c10/cuda/CUDACachingAllocator.cpp` with its default settings (no
max_split_size), described in
https://pytorch.org/docs/stable/notes/cuda.html#memory-management:

- a request is rounded up to 512 B (kMinBlockSize);
- one of up to 1 MiB (kSmallSize) is cut from segments of 2 MiB (kSmallBuffer) in a pool of their own;
- one below 10 MiB (kMinLargeAlloc) is cut from segments of 20 MiB (kLargeBuffer); a larger one gets a segment of its
  own size, rounded up to 2 MiB (kRoundLarge), unless a free block is large enough;
- the smallest sufficient free block is used, among equal ones that with the lowest address; the rest of it stays free
  if it has 512 B or more (small pool) or more than 1 MiB (large pool), and otherwise belongs to the request;
- a freed block merges with free neighbours of its segment; segments are kept for later requests of the same stream;
- with expandable segments, each pool of a stream has one segment, whose end grows by 2 MiB (small pool) or 20 MiB: at
  the end lies the largest block of all, the rest of a block of any size stays free if it has 512 B, and nothing is
  returned (torch could return whole pages);
- if the device has no more memory, all segments that are wholly free are returned, and the request is tried once more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping

ROUNDING = 512
SMALL_SIZE = 2**20
SMALL_SEGMENT = 2 * 2**20
LARGE_SEGMENT = 20 * 2**20
OWN_SEGMENT_FROM = 10 * 2**20
SEGMENT_ROUNDING = 2 * 2**20
FIRST_REGION = 512 * 2**20
_LARGE_FROM = 2**62


def expands(environment: Mapping[str, str]) -> bool:
    """Whether a program asks for expandable segments, by torch's variable or by its older name."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return any("expandable_segments:true" in environment.get(name, "").lower().replace(" ", "") for name in names)


def rounded(size: int) -> int:
    """The least bytes that a request for `size` bytes uses."""
    return -(-size // ROUNDING) * ROUNDING


class OutOfDeviceMemory(Exception):
    """The modelled device has no room for a request. The estimate catches it, and says that the step does not fit."""


class Block:
    """A part of a segment. Neighbours in the segment are linked; `pool` is the list of free blocks that it goes to."""

    __slots__ = ("address", "is_free", "next", "pool", "previous", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.is_free = False
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def is_whole_segment(self) -> bool:
        return self.previous is None and self.next is None


_Pool = list[tuple[int, int, Block]]


class CachingAllocator:
    """Allocates as PyTorch's allocator does. All figures are bytes.

    Addresses are invented. They decide which of several free blocks of one size is used: those of small segments rise,
    and those of others rise in a first region and fall from its start on. The driver's own may differ, but with these
    the requests that 21 programs made on an H100 reserve what they reserved there.
    """

    def __init__(self, limit_bytes: int | None = None, *, is_expandable: bool = False) -> None:
        """Model a device that gives up to `limit_bytes` to this process (None: no limit)."""
        self.is_expandable = is_expandable
        self._ends: dict[int, Block] = {}  # of expandable segments, by the identity of their pools: blocks of no size
        self.limit_bytes = limit_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.retries = 0
        self._small: defaultdict[int, _Pool] = defaultdict(list)  # stream -> its free blocks
        self._large: defaultdict[int, _Pool] = defaultdict(list)
        self._end_of_small, self._end_of_large = 0, _LARGE_FROM
        self._start_of_large = _LARGE_FROM

    def allocate(self, size: int, stream: int = 0) -> Block:
        """Return a block of `size` bytes or a little more. Raises OutOfDeviceMemory."""
        size = max(ROUNDING, rounded(size))
        is_small = size <= SMALL_SIZE
        pool = (self._small if is_small else self._large)[stream]
        get = self._expanded if self.is_expandable else self._new_segment
        block = self._take_free(pool, size) or get(pool, size, is_small)
        rest = block.size - size
        if rest >= ROUNDING if is_small or self.is_expandable else rest > SMALL_SIZE:
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        self.allocated_bytes -= block.size
        previous, following = block.previous, block.next
        if previous is not None and previous.is_free:
            self._forget(previous)
            block.address, block.size = previous.address, block.size + previous.size
            block.previous = previous.previous
            if block.previous is not None:
                block.previous.next = block
        if following is not None and following.is_free:
            self._forget(following)
            block.size += following.size
            block.next = following.next
            if block.next is not None:
                block.next.previous = block
        block.is_free = True
        insort(block.pool, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Return segments that are wholly free to the device."""
        for pool in self._pools():
            for entry in [entry for entry in pool if entry[2].is_whole_segment]:
                pool.remove(entry)
                self.reserved_bytes -= entry[0]

    def free_blocks(self) -> list[Block]:
        """The free blocks of both pools, for tests and for figures of fragmentation."""
        return [entry[2] for pool in self._pools() for entry in pool]

    def _pools(self) -> list[_Pool]:
        return [*self._small.values(), *self._large.values()]

    def _take_free(self, pool: _Pool, size: int) -> Block | None:
        place = bisect_left(pool, (size, -1))
        if place + 1 < len(pool) and self._can_grow(pool[place][2]):
            place += 1
        return pool.pop(place)[2] if place < len(pool) else None

    def _can_grow(self, block: Block) -> bool:
        return block.next is not None and block.next is self._ends.get(id(block.pool))

    def _expanded(self, pool: _Pool, size: int, is_small: bool) -> Block:
        """A block at the end of the pool's segment, which grows."""
        if id(pool) not in self._ends:
            self._ends[id(pool)] = Block(len(self._ends) * _LARGE_FROM, 0, pool)
        end = self._ends[id(pool)]
        last = end.previous
        if last is None or not last.is_free:
            last = Block(end.address, 0, pool)
            last.previous, last.next, end.previous = end.previous, end, last
            if last.previous is not None:
                last.previous.next = last
        else:
            self._forget(last)
        page = SMALL_SEGMENT if is_small else LARGE_SEGMENT
        grown = -(-(size - last.size) // page) * page
        self._reserve(grown)
        last.size, end.address = last.size + grown, end.address + grown
        return last

    def _reserve(self, size: int) -> None:
        if self._lacks_room(size):
            self.retries += 1
            self.empty_cache()
            if self._lacks_room(size):
                raise OutOfDeviceMemory(size)
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _new_segment(self, pool: _Pool, size: int, is_small: bool) -> Block:
        segment = _segment_size(size)
        self._reserve(segment)
        if is_small:
            address = self._end_of_small
            self._end_of_small += segment
        elif self._end_of_large + segment <= _LARGE_FROM + FIRST_REGION:
            address = self._end_of_large
            self._end_of_large += segment
        else:
            address = self._start_of_large = self._start_of_large - segment
        return Block(address, segment, pool)

    def _lacks_room(self, segment: int) -> bool:
        return self.limit_bytes is not None and self.reserved_bytes + segment > self.limit_bytes

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.pool)
        rest.is_free, rest.previous, rest.next = True, block, block.next
        if rest.next is not None:
            rest.next.previous = rest
        block.next, block.size = rest, size
        insort(rest.pool, (rest.size, rest.address, rest))

    def _forget(self, block: Block) -> None:
        del block.pool[bisect_left(block.pool, (block.size, block.address))]


def _segment_size(size: int) -> int:
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
