"""The objects of torch's that Python's collector knows: tensors, modules, optimizers, nodes of autograd's graph.

Told by their real type, which runs no foreign code: `isinstance` would ask dead proxies and lying `__class__` properties.
"""

from __future__ import annotations

import gc
import types
from dataclasses import dataclass, field

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_TYPE_DICT = type.__dict__["__dict__"]
_TYPE_MRO = type.__dict__["__mro__"]
_TYPE_NAME = type.__dict__["__name__"]


@dataclass(slots=True)
class TorchHeap:
    """Held for as long as a report is being made, and no longer. `hidden` counts objects that `gc.freeze()` put out of sight."""

    tensors: list[Any] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    hidden: int = 0


def look() -> TorchHeap:
    """One pass over all that the collector tracks (about 0.4 s for a million objects). Tensors are those that are defined."""
    heap = TorchHeap(hidden=gc.get_freeze_count())
    bins: dict[type, list[Any] | None] = {}
    for item in gc.get_objects():
        kind = type(item)
        if kind not in bins:
            bins[kind] = _bin(kind, heap)
        wanted = bins[kind]
        if wanted is not None:
            wanted.append(item)
    heap.tensors = [tensor for tensor in heap.tensors if is_defined(tensor)]
    return heap


def _bin(kind: type, heap: TorchHeap) -> list[Any] | None:
    bases = bases_of(kind)
    if torch.Tensor in bases:
        return heap.tensors
    if torch.nn.Module in bases:
        return heap.modules
    if torch.optim.Optimizer in bases:
        return heap.optimizers
    if is_node_type(kind):
        return heap.nodes
    return None


def bases_of(kind: type) -> tuple[type, ...]:
    """The class and its bases, whatever its metaclass says about them."""
    found: tuple[type, ...] = _TYPE_MRO.__get__(kind)
    return found


def class_dict(kind: type) -> Mapping[str, Any]:
    """What the class itself defines, whatever its metaclass says about it."""
    found: Mapping[str, Any] = _TYPE_DICT.__get__(kind)
    return found


def name_of(kind: type) -> str:
    return str(_TYPE_NAME.__get__(kind))


def torchs_own(name: str) -> Callable[[Any], Any]:
    """Reads an attribute of tensors as torch defines it, whatever a subclass has under this name."""
    found = next(class_dict(base)[name] for base in bases_of(torch.Tensor) if name in class_dict(base))
    getter: Callable[[Any], Any] = found.__get__
    return getter


_IS_LEAF = torchs_own("is_leaf")


def is_defined(tensor: Any) -> bool:
    """Whether there is a tensor behind the object: Python's collector may have emptied one that others still hold, and torch then
    answers no question about it."""
    try:
        _IS_LEAF(tensor)
    except RuntimeError:
        return False
    return True


def is_node_type(kind: type) -> bool:
    """Whether objects of this class are nodes of autograd's graph: those of C++ have no common base, but all have this descriptor."""
    found = (class_dict(base).get("next_functions") for base in bases_of(kind))
    return any(type(descriptor) is types.GetSetDescriptorType for descriptor in found)


def own_dict(item: object) -> dict[str, Any] | None:
    """An object's attributes, read through the descriptor that its class has from the interpreter; runs no code of the object's."""
    for base in bases_of(type(item)):
        descriptor = class_dict(base).get("__dict__")
        if descriptor is None:
            continue
        if type(descriptor) is not types.GetSetDescriptorType:
            return None  # a property of the class's own, which could answer anything
        found = descriptor.__get__(item)
        return found if type(found) is dict else None
    return None
