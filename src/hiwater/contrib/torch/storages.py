"""The storages of a tensor: their identity, their bytes and their device.

A storage is the memory that a tensor, its views and tied tensors share. Its identity is the address of its StorageImpl
(`_cdata`), not `data_ptr()`, which is 0 for all storages without memory. The only code of a tensor subclass or of an
active mode that runs here is `__tensor_flatten__`, with which a wrapper names its inner tensors.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch.utils import _python_dispatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CUDA_GRANULE = 512  # kMinBlockSize of the CUDA caching allocator: it hands out multiples of this
_DEEPEST_WRAPPER = 8


class Place(StrEnum):
    """The kind of a storage's bytes."""

    memory = "memory"
    meta = "meta"  # a shape without bytes
    fake = "fake"  # the same, shown as another device
    opaque = "opaque"  # memory in a library's layout (oneDNN), whose size torch does not know


@dataclass(frozen=True, slots=True)
class Piece:
    """One storage of a tensor. `part` is its name (`values`, `indices`, …); "" if the tensor has only one.

    `nbytes` is None if the size is symbolic or unknown. `tensor` is the plain tensor that uses it. `handle` is torch's
    storage object; None if there is none.
    """

    key: int
    nbytes: int | None
    device: str
    place: Place
    part: str
    tensor: Any
    handle: Any


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A context in which reading a tensor runs no `__torch_function__` of a subclass and no hook of a mode, and
    records no gradient."""
    with torch._C.DisableTorchFunctionSubclass(), _python_dispatch._disable_current_modes(), torch.no_grad():
        yield


def is_tensor(item: object) -> bool:
    """Whether `item` is a tensor by its real type. `isinstance` would read `__class__`, which proxies override."""
    return issubclass(type(item), torch.Tensor)


def pieces(tensor: Any) -> list[Piece]:
    """The storages of `tensor`. To be called inside `undisturbed()`. A tensor that cannot be read is one opaque
    piece."""
    found: list[Piece] = []
    _take_apart(tensor, "", found, 0)
    return found


def _take_apart(tensor: Any, part: str, found: list[Piece], depth: int) -> None:
    inner = _wrapped(tensor) if depth < _DEEPEST_WRAPPER else []
    if inner:
        for name, value in inner:
            _take_apart(value, f"{part}.{name}" if part else name, found, depth + 1)
        return
    for name, value in _components(tensor):
        _take_apart(value, f"{part}.{name}" if part else name, found, depth + 1)
    if tensor.layout in _WITHOUT_STORAGE:
        return
    found.append(_dense(tensor, part))


_WITHOUT_STORAGE = frozenset({
    torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc,
})  # fmt: skip


def _wrapped(tensor: Any) -> list[tuple[str, Any]]:
    """The inner tensors of a wrapper subclass, by attribute name."""
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter or not hasattr(kind, "__tensor_flatten__"):
        return []
    try:
        names = tensor.__tensor_flatten__()[0]
        inner = [(name, getattr(tensor, name)) for name in names]
    except Exception:  # noqa: BLE001 - a wrapper that is incomplete or cannot be read: only its outside is reported
        return []
    return [(name, value) for name, value in inner if is_tensor(value)]


def _components(tensor: Any) -> list[tuple[str, Any]]:
    """The dense tensors inside a sparse, nested or quantised one."""
    layout = tensor.layout
    if layout == torch.sparse_coo:
        return [("indices", tensor._indices()), ("values", tensor._values())]
    if layout in {torch.sparse_csr, torch.sparse_bsr}:
        return [
            ("crow_indices", tensor.crow_indices()),
            ("col_indices", tensor.col_indices()),
            ("values", tensor.values()),
        ]
    if layout in {torch.sparse_csc, torch.sparse_bsc}:
        return [
            ("ccol_indices", tensor.ccol_indices()),
            ("row_indices", tensor.row_indices()),
            ("values", tensor.values()),
        ]
    if layout == torch.strided and tensor.is_nested:
        return [
            ("sizes", tensor._nested_tensor_size()),
            ("strides", tensor._nested_tensor_strides()),
            ("offsets", tensor._nested_tensor_storage_offsets()),
        ]
    if tensor.is_quantized and tensor.qscheme() in _PER_CHANNEL:
        return [("scales", tensor.q_per_channel_scales()), ("zero_points", tensor.q_per_channel_zero_points())]
    return []


_PER_CHANNEL = frozenset({
    torch.per_channel_affine, torch.per_channel_affine_float_qparams, torch.per_channel_symmetric,
})  # fmt: skip


def _dense(tensor: Any, part: str) -> Piece:
    try:
        storage = tensor.untyped_storage()
        size, place = storage.nbytes(), storage.device
    except (NotImplementedError, RuntimeError):  # oneDNN's layout, tensors of a functorch transform
        return Piece(id(tensor), None, str(tensor.device), Place.opaque, part, tensor, None)
    nbytes = size if type(size) is int else None  # reading a symbolic size would fix it
    if place.type != "meta":
        return Piece(storage._cdata, nbytes, str(place), Place.memory, part, tensor, storage)
    is_fake = tensor.device.type != "meta" or _is_fake(tensor)
    return Piece(
        storage._cdata, nbytes, str(tensor.device), Place.fake if is_fake else Place.meta, part, tensor, storage
    )


def _is_fake(tensor: Any) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and issubclass(type(tensor), module.FakeTensor)


def rounded(nbytes: int, device: str) -> int:
    """The bytes that the device's allocator uses for `nbytes`: a multiple of 512 on CUDA and ROCm, `nbytes` elsewhere.

    The allocator may use a larger block. Only its snapshot shows that (`hiwater.contrib.torch.allocator`).
    """
    if not device.startswith("cuda") or nbytes <= 0:
        return nbytes
    return -(-nbytes // CUDA_GRANULE) * CUDA_GRANULE


def is_resizable(storage: Any) -> bool:
    """Whether the storage owns its memory. True if this torch (such as 2.2) does not know; resizing may then raise."""
    resizable = getattr(storage, "resizable", None)
    return resizable is None or bool(resizable())


def is_pinned(piece: Piece) -> bool:
    """Whether this is page-locked host memory. Only asked if a device runs: `is_pinned()` may start one."""
    if piece.handle is None or piece.device != "cpu" or piece.place is not Place.memory or not _has_a_running_device():
        return False
    try:
        # The storage's own is_pinned() passes a device on, for which torch warns that this is deprecated.
        return bool(torch.empty(0, dtype=torch.uint8).set_(piece.handle).is_pinned())
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def _has_a_running_device() -> bool:
    modules = [getattr(torch, name, None) for name in ("cuda", "xpu")]
    return any(module is not None and module.is_initialized() for module in modules)


def address_of(piece: Piece) -> int:
    """The address of the piece's memory; 0 if it has none, or if it is copy-on-write (reading the address would make
    the copy)."""
    is_shared_until_written = getattr(torch._C, "_is_cow_tensor", None)  # torch 2.3 and later
    if piece.place is not Place.memory or piece.handle is None:
        return 0
    if is_shared_until_written is not None and is_shared_until_written(piece.tensor):
        return 0
    return int(piece.handle.data_ptr())
