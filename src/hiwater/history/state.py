"""What a caching allocator held at one moment: what it took from the driver, what of that is in use, and why the rest is not free.

    reserved = requested + rounding + awaiting_free + inactive_split + free_segments

requested        bytes the program asked for, of blocks in use
rounding         what their blocks are larger
awaiting_free    freed by the program, and waiting for another stream to be done
inactive_split   free, in segments that also hold blocks in use: cannot be given back to the driver (fragmentation)
free_segments    segments that hold nothing: `empty_cache()` gives them back
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

DEFAULT_POOL = (0, 0)


@dataclass(slots=True)
class AllocatorState:
    """Bytes; the identity above holds to the byte. `largest_free_bytes` is the largest free block of the pool that everybody uses,
    `private_pools` what pools of their own (CUDA graphs, MemPool) reserve, as {"a.b": bytes}, part of the other figures."""

    segments: int = 0
    reserved_bytes: int = 0
    requested_bytes: int = 0
    rounding_bytes: int = 0
    awaiting_free_bytes: int = 0
    inactive_split_bytes: int = 0
    free_segments_bytes: int = 0
    largest_free_bytes: int = 0
    expandable_segments: int = 0
    private_pools: dict[str, int] = field(default_factory=dict)
    private_free_bytes: int = 0

    @property
    def allocated_bytes(self) -> int:
        """As torch.cuda.memory_allocated() has it: blocks in use with their rounding."""
        return self.requested_bytes + self.rounding_bytes

    @property
    def free_bytes(self) -> int:
        """Reserved and not in use."""
        return self.inactive_split_bytes + self.free_segments_bytes

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
        numbers = (getattr(state, name) for name in names - {"private_pools"})
        pools_are_sound = isinstance(state.private_pools, dict) and all(
            type(size) is int for size in state.private_pools.values()
        )
        return state if pools_are_sound and all(type(number) is int for number in numbers) else None


def of_segments(segments: Iterable[Mapping[str, Any]]) -> AllocatorState:
    """The state that torch's segments tell of: `torch.cuda.memory_snapshot()`, or those of a snapshot. Raises KeyError, TypeError."""
    state = AllocatorState()
    for segment in segments:
        _add(state, segment)
    return state


def _add(state: AllocatorState, segment: Mapping[str, Any]) -> None:
    pool = tuple(segment.get("segment_pool_id", DEFAULT_POOL))
    total, blocks, free, largest = int(segment["total_size"]), segment["blocks"], 0, 0
    used = 0
    for block in blocks:
        size, what = int(block["size"]), block["state"]
        if what == "inactive":
            free, largest = free + size, max(largest, size)
            continue
        used += size
        if what == "active_allocated":
            requested = min(size, requested_of(block))
            state.requested_bytes += requested
            state.rounding_bytes += size - requested
        else:
            state.awaiting_free_bytes += size
    free = max(free, total - used)  # what of a segment no block tells of is free
    state.segments += 1
    state.reserved_bytes += used + free
    state.expandable_segments += bool(segment.get("is_expandable", False))
    if used:
        state.inactive_split_bytes += free
    else:
        state.free_segments_bytes += free
    if pool == DEFAULT_POOL:
        state.largest_free_bytes = max(state.largest_free_bytes, largest)
    else:
        name = ".".join(str(part) for part in pool)
        state.private_pools[name] = state.private_pools.get(name, 0) + used + free
        state.private_free_bytes += free


def requested_of(block: Mapping[str, Any]) -> int:
    """Bytes asked for of a block in use: torch 2.1 and later say so, earlier ones in a history of the block, the first not at all."""
    history = block.get("history")
    size = block.get("requested_size", history[0]["real_size"] if history else block["size"])
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r} is no size")
    return size
