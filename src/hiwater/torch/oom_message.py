"""What the message of torch.OutOfMemoryError says, across versions; every figure may be missing, and sizes are rounded to two digits there.

torch 1.x puts the figures in parentheses ("GPU 0; 15.78 GiB total capacity; …"), 2.x writes sentences, 2.1 misspells "capacity", and CPU
torch counts in plain bytes. What no pattern finds is None; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_SIZE = r"(\d+(?:\.\d+)?) ?(bytes?|[KMGTP]iB|B)"
_PATTERNS = {
    "requested_bytes": (rf"[Tt]ried to allocate {_SIZE}",),
    "total_bytes": (rf"total capacity of {_SIZE}", rf"total capacty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free_bytes": (rf"of which {_SIZE} is free", rf"{_SIZE} free[;.)]"),
    "allowed_bytes": (rf"{_SIZE} allowed",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "allocated_bytes": (rf"Of the allocated memory {_SIZE} is allocated by", rf"{_SIZE} already allocated"),
    "private_pools_bytes": (rf"with {_SIZE} allocated in private pools",),
    "unallocated_bytes": (rf"and {_SIZE} is reserved by PyTorch but unallocated",),
    "reserved_bytes": (rf"{_SIZE} reserved in total",),
}  # fmt: skip
_OTHER_PROCESS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_DEVICE = re.compile(r"\b(GPU|XPU|NPU|HIP) (\d{1,4})\b")
_WORDS = re.compile(r"out of memory|can't allocate memory|not enough memory|alloc_failed|ALLOC_FAILED", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request, in bytes; None: the message does not say. `device` is the number of the accelerator, None for the CPU or unknown.
    `other_processes` are those that the message names, by number."""

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
    """Whether an exception says that memory was refused: torch's own class, or a RuntimeError of the driver's, of cuBLAS's or of CPU torch's."""
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


def _bytes(count: str, unit: str) -> int:
    if len(count) > 25:
        return 0
    whole, _, part = count.partition(".")
    size = _UNITS[unit]
    return int(whole) * size + (round(float("0." + part) * size) if part else 0)
