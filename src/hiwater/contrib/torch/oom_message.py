"""Parses the message of torch.OutOfMemoryError in all versions. Every figure may be missing. Sizes have two digits
after the point.

torch 1.x has the figures in parentheses ("GPU 0; 15.78 GiB total capacity; …"), 2.x has sentences, 2.1 misspells
"capacity", cudaMallocAsync has a table, and torch on the CPU writes bytes. A figure that no pattern finds is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hiwater.contrib.torch.estimate import allocator as model

_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_SIZE = r"(\d+(?:\.\d+)?) ?(bytes?|[KMGTP]iB|B)"
_PATTERNS = {
    "requested_bytes": (rf"[Tt]ried to allocate {_SIZE}", rf"Requested +: {_SIZE}"),
    "total_bytes": (
        rf"total capacity of {_SIZE}", rf"total capacty of {_SIZE}", rf"{_SIZE} total capacity",
        rf"Device limit +: {_SIZE}",
    ),
    "free_bytes": (rf"of which {_SIZE} is free", rf"{_SIZE} free[;.)]", rf"Free \(according to CUDA\): {_SIZE}"),
    "allowed_bytes": (rf"{_SIZE} allowed", rf"memory fraction\)\s+: {_SIZE}"),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "allocated_bytes": (
        rf"Of the allocated memory {_SIZE} is allocated by", rf"{_SIZE} already allocated",
        rf"Currently allocated +: {_SIZE}",
    ),
    "private_pools_bytes": (rf"with {_SIZE} allocated in private pools",),
    "unallocated_bytes": (rf"and {_SIZE} is reserved by PyTorch but unallocated",),
    "reserved_bytes": (rf"{_SIZE} reserved in total",),
}  # fmt: skip
_OTHER_PROCESS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_DEVICE = re.compile(r"\b(GPU|XPU|NPU|HIP|Allocation on device) (\d{1,4})\b")
_OF_CUDA = re.compile(r"\b(CUDA|HIP) out of memory")
_WORDS = re.compile(r"out of memory|can't allocate memory|not enough memory|alloc_failed|ALLOC_FAILED", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request, in bytes; None: the message does not say. `requested_bytes` is what torch tried to
    allocate, with its allocator of CUDA memory a segment (see `request_of_segment`). `device` is the number of the
    accelerator, None for the CPU or if unknown. `other_processes` has the bytes of processes that the message names,
    by process number."""

    message: str
    device: int | None
    requested_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    allowed_bytes: int | None
    process_bytes: int | None
    allocated_bytes: int | None
    private_pools_bytes: int | None
    unallocated_bytes: int | None
    reserved_bytes: int | None
    other_processes: dict[int, int]
    is_cpu: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """What the allocator passed to its observer before it raised the error: the device's number, and bytes."""

    device: int
    requested_bytes: int
    driver_free_bytes: int

    def is_of(self, refusal: Refusal) -> bool:
        """Whether the error is that of this refusal: same device, same size, same free memory, as torch writes them."""
        text = refusal.message
        return (
            _OF_CUDA.search(text) is not None
            and refusal.device == self.device
            and f"Tried to allocate {as_torch_writes(self.requested_bytes)}" in text
            and refusal.free_bytes in (None, _written(self.driver_free_bytes))
        )


def request_of_segment(size: int) -> tuple[int, int]:
    """The least and the most bytes of a request for which torch's caching allocator requests a segment of `size`
    bytes from the driver. The message and the observer have the size of the segment: `get_allocation_size` in
    `c10/cuda/CUDACachingAllocator.cpp`. A size that no segment has is that of the request."""
    if size == model.SMALL_SEGMENT:
        return 1, model.SMALL_SIZE
    if size == model.LARGE_SEGMENT:  # for requests below 10 MiB, and for those between 18 and 20
        return model.SMALL_SIZE + 1, size
    if size > model.OWN_SEGMENT_FROM and size % model.SEGMENT_ROUNDING == 0:
        return size - model.SEGMENT_ROUNDING + 1, size
    return size, size


def as_torch_writes(size: int) -> str:
    """A size in bytes as in the message: `format_size` in `c10/cuda/CUDACachingAllocator.cpp`."""
    if size <= 1 << 10:
        return f"{size} bytes"
    for limit, unit in ((1 << 20, "KiB"), (1 << 30, "MiB")):
        if size <= limit:
            return f"{size / _UNITS[unit]:.2f} {unit}"
    return f"{size / _UNITS['GiB']:.2f} GiB"


def parse(message: str) -> Refusal:
    """The figures of a message. Never raises."""
    text = message[:10_000]
    device = _DEVICE.search(text)
    others = {int(pid): _bytes(count, unit) for pid, count, unit in _OTHER_PROCESS.findall(text)[:100]}
    return Refusal(
        message=text, device=int(device[2]) if device else None, other_processes=others,
        is_cpu="CPUAllocator" in text or "alloc_cpu" in text,
        **{name: _first(patterns, text) for name, patterns in _PATTERNS.items()},
    )  # fmt: skip


def is_refusal(error: BaseException | None) -> bool:
    """Whether an exception says that memory was refused: torch's own class, or a RuntimeError of the driver, of
    cuBLAS or of torch's CPU part."""
    if error is None:
        return False
    if any(
        kind.__name__ == "OutOfMemoryError" and kind.__module__.partition(".")[0] == "torch"
        for kind in type(error).__mro__
    ):
        return True
    return isinstance(error, RuntimeError) and bool(_WORDS.search(str(error)[:10_000]))


def _first(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        found = re.search(pattern, text)
        if found:
            return _bytes(found[1], found[2])
    return None


def _written(size: int) -> int:
    """A size rounded as the message rounds it."""
    count, _, unit = as_torch_writes(size).partition(" ")
    return _bytes(count, unit)


def _bytes(count: str, unit: str) -> int:
    if len(count) > 25:
        return 0
    whole, _, part = count.partition(".")
    size = _UNITS[unit]
    return int(whole) * size + (round(float("0." + part) * size) if part else 0)
