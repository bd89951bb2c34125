"""The figures of a device's allocator: the independent measure of the identity.

On CUDA this is the caching allocator's list of blocks; addresses match them with storages. Other devices have one
counter. A device that the program has not started is not read.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import torch

from hiwater.contrib.devices.torch import segments_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

ACTIVE, AWAITING = "active_allocated", ("active_awaiting_free", "active_pending_free")


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """A block in use of `nbytes` for `requested_bytes` (0 if the allocator does not know it). `origin` is the
    innermost line of its allocation, if the history was on. `private` says that it is in a private pool, as for CUDA
    graphs. `stream` is its CUDA stream; 0 is the default one."""

    address: int
    nbytes: int
    requested_bytes: int
    origin: str = ""
    private: bool = False
    stream: int = 0


@dataclass(frozen=True, slots=True)
class SegmentBlocks:
    """The blocks in use of one device, by address. `awaiting_bytes` are freed, but a stream may still use them."""

    active: tuple[SegmentBlock, ...]
    awaiting_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.active)

    def at(self, address: int) -> SegmentBlock | None:
        """The block that contains `address`."""
        place = bisect.bisect_right(self.active, address, key=lambda block: block.address) - 1
        if place < 0 or not address:
            return None
        block = self.active[place]
        return block if address < block.address + block.nbytes else None


def blocks_of(device: str) -> SegmentBlocks | None:
    """The blocks of a CUDA device; None for other devices, for one that was not started, and for allocators without
    a list."""
    place = torch.device(device)
    if place.type != "cuda" or not torch.cuda.is_initialized():
        return None
    try:
        segments = segments_of(torch.cuda, torch.cuda.current_device() if place.index is None else place.index)
    except RuntimeError:  # a pluggable allocator has none
        return None
    return blocks_in(segments) if segments else None


def blocks_in(segments: Iterable[Mapping[str, Any]]) -> SegmentBlocks:
    """The blocks in use in these segments of an allocator snapshot. Without addresses, as in old snapshots, blocks
    are consecutive."""
    active, awaiting = [], 0
    for segment in segments:
        private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        address = int(segment["address"])
        for block in segment["blocks"]:
            address = int(block.get("address", address))
            size = int(block["size"])
            if block["state"] == ACTIVE:
                requested = int(block.get("requested_size", 0))
                origin = _origin(block.get("frames", ()))
                active.append(SegmentBlock(address, size, requested, origin, private, int(segment.get("stream", 0))))
            elif block["state"] in AWAITING:
                awaiting += size
            address += size
    return SegmentBlocks(tuple(sorted(active, key=lambda block: block.address)), awaiting)


def _origin(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost Python line outside torch; the innermost frame if there is none."""
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = [frame for frame in python if "/torch/" not in str(frame["filename"])]
    chosen = next(iter(own or python or frames), None)
    if chosen is None:
        return ""
    name = str(chosen.get("filename", "")).rsplit("/", 1)[-1]
    return f"{chosen.get('name', '')} ({name}:{chosen.get('line', 0)})"


def allocated_bytes(device: str) -> tuple[int, str] | None:
    """The allocated bytes of the device's allocator, and the counter's name; None without a counter or a running
    device."""
    place = torch.device(device)
    module: Any = getattr(torch, place.type, None)
    if place.type in {"cpu", "meta"} or module is None:
        return None
    if place.type == "mps":
        return int(module.current_allocated_memory()), "torch.mps.current_allocated_memory()"
    is_initialized, counter = getattr(module, "is_initialized", None), getattr(module, "memory_allocated", None)
    if is_initialized is None or counter is None or not is_initialized():
        return None
    try:
        counted = int(counter(place))
    except RuntimeError:  # nor counters
        return None
    return counted, f"torch.{place.type}.memory_allocated()"
