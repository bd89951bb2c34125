"""Moves storages to RAM and back. The tensors that use them, views and tied tensors stay valid, also those that
autograd saved.

A storage is copied, then resized to 0, which returns its memory to the allocator. Later it gets memory again, and the
copy is written back. Only bytes are copied, and no version counter changes, so backward accepts its saved tensors.
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
    """A storage whose bytes are in `copy`. `weak` allows the program to drop it meanwhile. `stream` is its CUDA
    stream."""

    weak: Any
    key: int
    name: str
    device: str
    nbytes: int
    copy: Any
    stream: int


BORROWED = "its memory is borrowed, or lent to NumPy"


def obstacle(holding: Holding, block: SegmentBlock | None, storage: Any) -> str:
    """Why this storage cannot be moved; "" if it can."""
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
    """Copy to RAM: the first half of moving away. The caller keeps the copy before `let_go()`, so that nothing is
    lost in between. Raises torch's error when there is no room for the copy."""
    nbytes = storage.nbytes()
    copy = torch.empty(nbytes, dtype=torch.uint8)
    copy.copy_(_bytes_of(storage, nbytes))
    return Moved(holding.weak, storage._cdata, holding.views[0].name, holding.device, nbytes, copy, stream)


def let_go(storage: Any) -> bool:
    """Return the memory of a copied storage to the allocator. False, and nothing is changed, if the memory is
    borrowed."""
    try:
        storage.resize_(0)
    except RuntimeError:  # "Trying to resize storage that is not resizable"
        return False
    return True


def move_back(moved: Moved) -> bool:
    """Allocate memory for the storage and copy its bytes back. False if the program dropped or resized it meanwhile.

    Raises torch.OutOfMemoryError if there is no room; then nothing is changed.
    """
    storage = torch.UntypedStorage._new_with_weak_ptr(moved.weak.cdata)
    if storage is None or storage.nbytes() != 0:
        return False
    with _on_stream(moved):
        try:
            storage.resize_(moved.nbytes)
            _bytes_of(storage, moved.nbytes).copy_(moved.copy)
        except BaseException:
            # Also Ctrl-C: a storage with memory but without its bytes would look like one that the program filled.
            storage.resize_(0)
            raise
    return True


def _bytes_of(storage: Any, nbytes: int) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (nbytes,), (1,))


@contextlib.contextmanager
def _on_stream(moved: Moved) -> Iterator[None]:
    """A context on the stream of the memory: within a stream, the allocator reuses freed memory without waiting."""
    if not moved.stream:
        yield
        return
    with torch.cuda.stream(torch.cuda.ExternalStream(moved.stream, device=moved.device)):
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A context without the program's modes: none of them sees the operations, and the tensors made are no inference
    tensors."""
    with torch.inference_mode(False), storages.undisturbed():
        yield


def wait_for(device: str) -> None:
    """Wait until the device has done all submitted work."""
    module = getattr(torch, torch.device(device).type, None)
    if device != "cpu" and module is not None:
        module.synchronize(device) if device.startswith("cuda") else module.synchronize()


def release_caches(device: str) -> None:
    """Return cached memory to the driver: workspaces of cuBLAS, then all free segments of the allocator."""
    module: Any = getattr(torch, torch.device(device).type, None)
    if device == "cpu" or module is None:
        return
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if device.startswith("cuda") and clear is not None:
        clear()
    module.empty_cache()


def ram_to_spare() -> int | None:
    """The bytes of RAM that can be used before the OOM killer runs: what the machine has and the cgroup's limit allows.
    None if unknown.

    malloc() does not show this: Linux grants memory that it does not have.
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
            # The kernel drops it on demand.
            cached = sum(counted.get(name, 0) for name in ("inactive_file", "active_file"))
            known.append(limit - int(Path(group.current).read_text()) + cached)
    return min(known, default=None)


def in_use(device: str) -> tuple[int, int] | None:
    """Bytes allocated and reserved on the device by torch's counters; None if it has none."""
    counted = allocator.allocated_bytes(device)
    if counted is None:
        return None
    reserved = getattr(getattr(torch, torch.device(device).type), "memory_reserved", None)
    return counted[0], int(reserved(device)) if reserved is not None else counted[0]
