"""Moves storages to RAM and back, under the tensors that look at them: views, ties and what autograd saved stay what they are.

A storage is copied, then resized to nothing, which gives its memory back to the allocator; later it gets memory again and the copy
goes back. Bytes are copied as bytes, and no version counter moves, so that backward takes what it saved for unchanged.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from hiwater._os import cgroup_files
from hiwater.contrib.torch import allocator, storages
from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hiwater.contrib.torch.allocator import SegmentBlock
    from hiwater.contrib.torch.collect import Holding


@dataclass(slots=True)
class Moved:
    """A storage whose bytes are in `copy`. `weak` lets the program drop it meanwhile; `stream` is the CUDA stream it belongs to."""

    weak: Any
    key: int
    name: str
    device: str
    nbytes: int
    copy: Any
    stream: int


BORROWED = "its memory is borrowed, or lent to NumPy"


def obstacle(holding: Holding, block: SegmentBlock | None, storage: Any) -> str:
    """Why this storage must stay where it is; "" when it may be moved."""
    if not storages.is_resizable(storage):
        return BORROWED
    if holding.device == "cpu" and storage.is_shared():
        return "its memory is shared between processes"
    if holding.pinned:
        return "is page-locked memory of the host"
    if block is not None and block.private:
        return "lies in a private pool, whose addresses a CUDA graph has"
    if holding.device.startswith("cuda") and block is None:
        return "is not of torch's allocator"
    return ""


def copied(holding: Holding, storage: Any, stream: int = 0) -> Moved:
    """Copy to RAM: the first half of moving away. Whoever asks keeps the copy before `let_go()`, so that nothing is lost in between. Raises
    what torch raises when there is no room for it."""
    nbytes = storage.nbytes()
    copy = torch.empty(nbytes, dtype=torch.uint8)
    copy.copy_(_bytes_of(storage, nbytes))
    return Moved(holding.weak, storage._cdata, holding.looks[0].name, holding.device, nbytes, copy, stream)


def let_go(storage: Any) -> bool:
    """Give the memory of a storage that was copied back to the allocator; False, with nothing changed, where it is borrowed."""
    try:
        storage.resize_(0)
    except RuntimeError:  # "Trying to resize storage that is not resizable"
        return False
    return True


def move_back(moved: Moved) -> bool:
    """Give the storage memory again and copy its bytes back. False where the program dropped or resized it meanwhile.

    Raises torch.OutOfMemoryError where there is no room, and changes nothing then.
    """
    storage = torch.UntypedStorage._new_with_weak_ptr(moved.weak.cdata)
    if storage is None or storage.nbytes() != 0:
        return False
    with _on_stream(moved):
        try:
            storage.resize_(moved.nbytes)
            _bytes_of(storage, moved.nbytes).copy_(moved.copy)
        except (
            BaseException
        ):  # Ctrl-C, too: with memory and without its bytes it would pass for one that the program filled
            storage.resize_(0)
            raise
    return True


def _bytes_of(storage: Any, nbytes: int) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (nbytes,), (1,))


@contextlib.contextmanager
def _on_stream(moved: Moved) -> Iterator[None]:
    """On the stream whose order the memory follows: the allocator hands freed memory on within a stream without waiting."""
    if not moved.stream:
        yield
        return
    with torch.cuda.stream(torch.cuda.ExternalStream(moved.stream, device=moved.device)):
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A block in which operations are ours alone: no mode of the program's sees them, and no inference mode marks what they touch."""
    with torch.inference_mode(False), storages.undisturbed():
        yield


def wait_for(device: str) -> None:
    """Until all that was submitted to the device is done."""
    module = getattr(torch, torch.device(device).type, None)
    if device != "cpu" and module is not None:
        module.synchronize(device) if device.startswith("cuda") else module.synchronize()


def release_caches(device: str) -> None:
    """Give back what only caches hold: workspaces of cuBLAS, then every free segment of the allocator."""
    module: Any = getattr(torch, torch.device(device).type, None)
    if device == "cpu" or module is None:
        return
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if device.startswith("cuda") and clear is not None:
        clear()
    module.empty_cache()


def ram_to_spare() -> int | None:
    """How much RAM can be taken without somebody being killed for it: what the machine has, and the cgroup's limit leaves. None if unknown.

    Asking malloc does not tell: Linux promises memory that it does not have.
    """
    known = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        rows = Path("/proc/meminfo").read_text().splitlines()
        known.append(1024 * int(next(row for row in rows if row.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError, MeterUnavailable):
        group = cgroup_files.find()
        limit = group.limit()
        if limit is not None:
            counted = cgroup_files.event_counts(f"{group.folder}/memory.stat")
            cached = sum(counted.get(name, 0) for name in ("inactive_file", "active_file"))  # goes when room is needed
            known.append(limit - int(Path(group.current).read_text()) + cached)
    return min(known, default=None)


def in_use(device: str) -> tuple[int, int] | None:
    """Bytes allocated and reserved on the device by torch's counters; None where it has none."""
    counted = allocator.allocated_bytes(device)
    if counted is None:
        return None
    reserved = getattr(getattr(torch, torch.device(device).type), "memory_reserved", None)
    return counted[0], int(reserved(device)) if reserved is not None else counted[0]
