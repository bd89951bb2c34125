"""What the allocator of a device says that it gave out: the independent side of the identity.

On CUDA that is the caching allocator's own list of blocks, matched with storages by address. Other devices give one number.
Nothing is asked of a device that the program has not started.
"""

from __future__ import annotations

import bisect
import inspect
from dataclasses import dataclass

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

ACTIVE, AWAITING = "active_allocated", ("active_awaiting_free", "active_pending_free")


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """A block in use. `nbytes` is what was taken for `requested_bytes` (0 where the allocator does not say). `origin` is the innermost
    line of its allocation, where history was on; `private` says that it lies in a pool of its own, as those of CUDA graphs do; `stream` is
    the CUDA stream whose order it follows, 0 for the default one."""

    address: int
    nbytes: int
    requested_bytes: int
    origin: str = ""
    private: bool = False
    stream: int = 0


@dataclass(frozen=True, slots=True)
class SegmentBlocks:
    """Every block in use of one device, by address. `awaiting_bytes` is freed already, but a stream may still use it."""

    active: tuple[SegmentBlock, ...]
    awaiting_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.active)

    def at(self, address: int) -> SegmentBlock | None:
        """The block in which `address` lies."""
        place = bisect.bisect_right(self.active, address, key=lambda block: block.address) - 1
        if place < 0 or not address:
            return None
        block = self.active[place]
        return block if address < block.address + block.nbytes else None


def blocks_of(device: str) -> SegmentBlocks | None:
    """The blocks of a CUDA device; None for other devices, one that was not started, and allocators that keep no list."""
    place = torch.device(device)
    if place.type != "cuda" or not torch.cuda.is_initialized():
        return None
    snapshot: Any = torch.cuda.memory_snapshot
    quick = {"include_traces": False} if "include_traces" in inspect.signature(snapshot).parameters else {}
    index = torch.cuda.current_device() if place.index is None else place.index
    try:
        segments = [segment for segment in snapshot(**quick) if segment.get("device") == index]
    except RuntimeError:  # a pluggable allocator has none
        return None
    return blocks_in(segments) if segments else None


def blocks_in(segments: Iterable[Mapping[str, Any]]) -> SegmentBlocks:
    """The blocks in use in these segments of an allocator snapshot. Old snapshots leave addresses out: blocks then follow each other."""
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
    """The innermost Python line that is not torch's own; the innermost frame where there is none."""
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = [frame for frame in python if "/torch/" not in str(frame["filename"])]
    chosen = next(iter(own or python or frames), None)
    if chosen is None:
        return ""
    name = str(chosen.get("filename", "")).rsplit("/", 1)[-1]
    return f"{chosen.get('name', '')} ({name}:{chosen.get('line', 0)})"


def allocated_bytes(device: str) -> tuple[int, str] | None:
    """What the device's allocator counts as allocated, and the counter's name; None where there is no such counter or no device runs."""
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
