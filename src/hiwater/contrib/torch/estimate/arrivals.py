"""Which storages are on the card while a model is built, and who follows them: the tracker of the estimate.

A storage comes to the card when it is made there, or when it is moved (`module.cuda()` moves the parts of a module one
by one). The order decides where storages lie in the card's segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

HOST = ("cpu", "meta")  # types of devices that are no card


class StorageFollower(Protocol):
    """What is told of storages."""

    def track(self, tensor: torch.Tensor) -> None: ...

    def resized(self, storage: torch.UntypedStorage) -> None: ...

    def taken(self, real: torch.Tensor) -> torch.Tensor: ...

    def follow_graph(self, graph: Callable[..., Any], given: Sequence[Any], results: Sequence[Any]) -> None: ...


_followers: list[StorageFollower] = []
is_planning = False
"""Whether a compiler runs operators, on tensors of its own."""


def follow(follower: StorageFollower) -> None:
    """Tell this one, and no other, of what happens from now on."""
    _followers[:] = [follower]


def note(*values: Any) -> None:
    """These tensors are on the card now. A real one is there once a fake stands for it."""
    for value in () if is_planning else tree_leaves(values):
        if isinstance(value, torch.Tensor) and all(isinstance(part, FakeTensor) for part in parts(value)):
            for part in parts(value):
                vars(part.untyped_storage())["_is_on_card"] = True
            for follower in _followers:
                follower.track(value)


def taken(value: Any) -> Any:
    """A fake for a real tensor that a program has read or computed on the host; others as they are."""
    is_real = type(value) is torch.Tensor and not value.requires_grad and value.layout == torch.strided
    if not is_real or is_planning or not _followers or not torch._C._len_torch_dispatch_stack():
        return value
    return _followers[0].taken(value)


def computed(graph: Callable[..., Any], given: Sequence[Any], results: Sequence[Any]) -> None:
    """A compiled program has made these results of a graph, by kernels that show no operators."""
    for follower in _followers:
        follower.follow_graph(graph, given, results)


def are_noted(values: Any) -> bool:
    """Whether one of these is on the card."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
    return any(hasattr(part.untyped_storage(), "_is_on_card") for tensor in tensors for part in parts(tensor))


_resize = torch.UntypedStorage.resize_


def resize(self: torch.UntypedStorage, size: int) -> Any:
    """`UntypedStorage.resize_`, of which no operator tells: FSDP frees and allocates its parameters by it."""
    result = _resize(self, size)
    for follower in _followers:
        follower.resized(self)
    return result


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that hold this one's memory."""
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [part for one in inner if isinstance(one, torch.Tensor) for part in parts(one)]
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
