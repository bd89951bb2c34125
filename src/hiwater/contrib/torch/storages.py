"""Which storages a tensor consists of: their identity, their bytes and where those are.

A storage is the piece of memory that tensors, their views and their ties look at together. It is known by the address of its
StorageImpl (`_cdata`), never by `data_ptr()`, which is 0 for all that have no memory. Nothing here calls code of a tensor
subclass or of an active mode, but for `__tensor_flatten__`, which is how a wrapper names what it wraps.
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
    """What a storage's bytes are."""

    memory = "memory"
    meta = "meta"  # a shape without bytes
    fake = "fake"  # the same, posing as another device
    opaque = "opaque"  # memory of a library's own layout (oneDNN), which torch has no size for


@dataclass(frozen=True, slots=True)
class Piece:
    """One storage of a tensor. `part` says which (`values`, `indices`, …), "" where the tensor is that storage.

    `nbytes` is None where the size is symbolic or not to be had. `tensor` is the plain tensor that looks at it, `handle` torch's own
    storage object; None where there is none.
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
    """A block in which looking at a tensor runs no subclass's `__torch_function__`, no mode's hook, and records no gradient."""
    with torch._C.DisableTorchFunctionSubclass(), _python_dispatch._disable_current_modes(), torch.no_grad():
        yield


def is_tensor(item: object) -> bool:
    """Whether `item` is a tensor, by its real type: `isinstance` asks `__class__`, which a dead proxy or a liar answers for."""
    return issubclass(type(item), torch.Tensor)


def pieces(tensor: Any) -> list[Piece]:
    """The storages that `tensor` consists of; call it inside `undisturbed()`. A tensor that tells nothing is one opaque piece."""
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
    """What a wrapper subclass wraps, by attribute name."""
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter or not hasattr(kind, "__tensor_flatten__"):
        return []
    try:
        names = tensor.__tensor_flatten__()[0]
        inner = [(name, getattr(tensor, name)) for name in names]
    except Exception:  # noqa: BLE001 - a wrapper half built, or one that tells nothing: its outside is all there is
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
    nbytes = size if type(size) is int else None  # a symbolic size would be fixed by looking at it
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
    """What the device's allocator takes for `nbytes`: a multiple of 512 on CUDA (and ROCm, which has the same name), `nbytes` elsewhere.

    The allocator may give a whole larger block; only its snapshot knows (`hiwater.contrib.torch.allocator`).
    """
    if not device.startswith("cuda") or nbytes <= 0:
        return nbytes
    return -(-nbytes // CUDA_GRANULE) * CUDA_GRANULE


def is_resizable(storage: Any) -> bool:
    """Whether the storage owns its memory. True where this torch cannot say, as 2.2: whoever resizes it meets an error then."""
    asked = getattr(storage, "resizable", None)
    return asked is None or bool(asked())


def is_pinned(piece: Piece) -> bool:
    """Whether this is page-locked host memory. Asks only where a device runs already: the question may start one."""
    if piece.handle is None or piece.device != "cpu" or piece.place is not Place.memory or not _has_a_running_device():
        return False
    try:
        return bool(piece.handle.is_pinned())
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def _has_a_running_device() -> bool:
    modules = [getattr(torch, name, None) for name in ("cuda", "xpu")]
    return any(module is not None and module.is_initialized() for module in modules)


def address_of(piece: Piece) -> int:
    """Where the piece's memory begins, 0 for what has none or is a copy-on-write share (asking would make the copy)."""
    is_shared_until_written = getattr(torch._C, "_is_cow_tensor", None)  # torch 2.3 and later
    if piece.place is not Place.memory or piece.handle is None:
        return 0
    if is_shared_until_written is not None and is_shared_until_written(piece.tensor):
        return 0
    return int(piece.handle.data_ptr())
