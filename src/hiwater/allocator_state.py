"""What a caching allocator held at one moment: what it took from the driver, what of that is in use, and why the rest
is not free.

    reserved = requested + rounding + awaiting_free + inactive_split + free_segments

- requested: bytes the program asked for, of blocks in use
- rounding: what their blocks are larger
- awaiting_free: freed by the program, and waiting for another stream to be done
- inactive_split: free, and cannot be given back to the driver (fragmentation): pieces of segments that also hold blocks
  in use
- free_segments: free, and can be given back: segments that hold nothing, and whole free pages of expandable segments

`empty_cache()` gives back the last, but for private pools'.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

DEFAULT_POOL = (0, 0)
_PAGES = {"small": 2 << 20, "large": 20 << 20}
"""What expandable segments are mapped and unmapped by: kSmallBuffer and kLargeBuffer in
c10/cuda/CUDACachingAllocator.cpp."""


@dataclass(slots=True)
class AllocatorState:
    """Bytes: reserved = requested + rounding + awaiting_free + inactive_split + free_segments, to the byte. A free
    block is handed out only to the stream and the kind of request (small, up to 1 MiB, or large) that its segment is
    for: `largest_free` has the largest of each in the pool that everybody uses, as {"large, stream 0x0": bytes}.
    `private_pools` is what pools of their own (CUDA graphs, MemPool) reserve, as {"a.b": bytes}, `private_free_bytes`
    what of that is free, and `private_free_segments_bytes` what of that is in `free_segments_bytes`: part of the other
    figures."""

    segments: int = 0
    reserved_bytes: int = 0
    requested_bytes: int = 0
    rounding_bytes: int = 0
    awaiting_free_bytes: int = 0
    inactive_split_bytes: int = 0
    free_segments_bytes: int = 0
    expandable_segments: int = 0
    private_pools: dict[str, int] = field(default_factory=dict)
    private_free_bytes: int = 0
    private_free_segments_bytes: int = 0
    largest_free: dict[str, int] = field(default_factory=dict)

    @property
    def allocated_bytes(self) -> int:
        """As torch.cuda.memory_allocated() has it: blocks in use with their rounding."""
        return self.requested_bytes + self.rounding_bytes

    @property
    def free_bytes(self) -> int:
        """Reserved and not in use."""
        return self.inactive_split_bytes + self.free_segments_bytes

    def largest_free_bytes(self, kind: str = "") -> int:
        """The largest free block of any stream, for requests of one `kind` ("small", "large") or of either."""
        return max((size for name, size in self.largest_free.items() if name.startswith(kind)), default=0)

    def to_json(self) -> str:
        """For the facts of a capture."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """None for what is no state."""
        try:
            said = json.loads(text)
            names = set(cls.__dataclass_fields__)
            state = cls(**{name: value for name, value in said.items() if name in names})
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        tables = [state.private_pools, state.largest_free]
        if not all(isinstance(table, dict) for table in tables):
            return None
        numbers = [getattr(state, name) for name in names - {"private_pools", "largest_free"}]
        numbers += [number for table in tables for number in table.values()]
        return state if all(type(number) is int for number in numbers) else None


def of_segments(segments: Iterable[Mapping[str, Any]]) -> AllocatorState:
    """The state that torch's segments tell of: `torch.cuda.memory_snapshot()`, or those of a snapshot. Raises
    KeyError, TypeError."""
    state = AllocatorState()
    for segment in segments:
        _add(state, segment)
    return state


def _add(state: AllocatorState, segment: Mapping[str, Any]) -> None:
    pool = tuple(segment.get("segment_pool_id", DEFAULT_POOL))
    total, blocks, free, largest = int(segment["total_size"]), segment["blocks"], 0, 0
    is_expandable = bool(segment.get("is_expandable", False))
    used = pages = at = 0
    for block in blocks:
        size, what = int(block["size"]), block["state"]
        if what == "inactive":
            free, largest = free + size, max(largest, size)
            pages += _whole_pages(at, size, segment) if is_expandable else 0
        else:
            used += size
            _add_used(state, block, size)
        at += size
    free = max(free, total - used)  # what of a segment no block tells of is free
    can_return = pages if is_expandable else 0 if used else free
    state.segments += 1
    state.reserved_bytes += used + free
    state.expandable_segments += is_expandable
    state.inactive_split_bytes += free - can_return
    state.free_segments_bytes += can_return
    if pool == DEFAULT_POOL:
        if largest:
            name = f"{segment.get('segment_type', 'large')}, stream {int(segment.get('stream', 0)):#x}"
            state.largest_free[name] = max(state.largest_free.get(name, 0), largest)
    else:
        name = ".".join(str(part) for part in pool)
        state.private_pools[name] = state.private_pools.get(name, 0) + used + free
        state.private_free_bytes += free
        state.private_free_segments_bytes += can_return


def _add_used(state: AllocatorState, block: Mapping[str, Any], size: int) -> None:
    if block["state"] != "active_allocated":
        state.awaiting_free_bytes += size
        return
    requested = min(size, requested_of(block))
    state.requested_bytes += requested
    state.rounding_bytes += size - requested


def _whole_pages(at: int, size: int, segment: Mapping[str, Any]) -> int:
    """Bytes of the whole pages in a free block that begins `at` bytes into an expandable segment. A segment of a
    snapshot is a range of mapped pages, and so begins with one (`snapshot`, `unmap_block` and `SegmentRange` in
    c10/cuda/CUDACachingAllocator.cpp)."""
    page = _PAGES.get(str(segment.get("segment_type", "large")), _PAGES["large"])
    return max(0, (at + size) // page - -(-at // page)) * page


def requested_of(block: Mapping[str, Any]) -> int:
    """Bytes asked for of a block in use: torch 2.1 and later say so, earlier ones in a history of the block, the
    first not at all."""
    history = block.get("history")
    size = block.get("requested_size", history[0]["real_size"] if history else block["size"])
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r} is not a size")
    return size
