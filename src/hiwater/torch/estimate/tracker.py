"""Follows every storage of a step on fake tensors: when it comes, when it goes, and which module and line made it.

Lives in the process made for the estimate, never in the user's own. Tensors are fake, on `cpu`: they have shapes and storages with
sizes, and no memory. The mode stands above FakeTensorMode, so it sees what autograd asks for, in forward and in backward.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from hiwater.torch.estimate.trace import NOWHERE, Place, Storage, Trace

_OWN_FOLDERS = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, __file__))
_NOT_THE_USERS = (*_OWN_FOLDERS, "<frozen", contextlib.__file__, functools.__file__)
_ITEM = "aten::_local_scalar_dense"


class Tracker(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped where types are checked
    """Books storages in `trace` while `is_recording`, and keeps every tensor on the one device that there is, always."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace()
        self.is_recording = False
        self.phase = ""
        self.drivers: frozenset[CodeType] = (
            frozenset()
        )  # code of ours that calls the user's: beyond it is no line of the step
        self.modules: list[str] = []  # names of the modules whose forward is running, outermost first
        self._numbers: dict[int, int] = {}  # storage's address -> its number in the trace
        self._sizes: dict[int, int] = {}
        self._watchers: dict[int, Any] = {}
        self._places: dict[int, Place] = {}  # autograd's sequence number -> where the forward of that node was called

    def begin(self, step: int, phase: str) -> None:
        """From here on the run is in this phase."""
        self.phase = phase
        self.trace.begin(step, phase)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            kwargs["device"] = torch.device("cpu")
        if self.phase == "optimizer" and function.name() == _ITEM:
            return _number(function, args[0])
        result = function(*args, **kwargs)
        if self.is_recording:
            self._remember_node()
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self.book(value)
        return result

    def book(self, tensor: torch.Tensor, category: str = "", place: Place | None = None) -> None:
        """Enter the tensor's storages, unless they are known; a category given here is the last word on theirs."""
        for part in _parts(tensor):
            storage = part.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self._numbers and self._sizes[key] != size:
                self._remove(key)  # resized in place: the allocator sees a new block come and the old one go
            if key not in self._numbers:
                self._enter(storage, key, size, place or self._place())
            if category:
                booked = self.trace.storages[self._numbers[key]]
                booked.category, booked.place = category, place or booked.place

    def number_of(self, tensor: torch.Tensor) -> list[int]:
        """The numbers of this tensor's storages in the trace, for those that are known."""
        keys = [part.untyped_storage()._cdata for part in _parts(tensor)]
        return [self._numbers[key] for key in keys if key in self._numbers]

    def alive(self) -> list[int]:
        """The numbers of the storages that are there now."""
        return list(self._numbers.values())

    def _enter(self, storage: torch.UntypedStorage, key: int, size: int, place: Place) -> None:
        # Autograd computes gradients with gradients off: where they are on, a checkpoint runs its forward again.
        again = self.phase == "backward" and torch.is_grad_enabled() and torch._C._current_autograd_node() is not None
        phase = "recompute" if again else self.phase
        self._numbers[key] = self.trace.add(Storage(size, place, phase))
        self._sizes[key] = size
        self._watchers[key] = weakref.ref(storage, partial(self._forget, key))

    def _remove(self, key: int) -> None:
        number = self._numbers.pop(key, None)
        self._watchers.pop(key, None)
        if number is not None:
            del self._sizes[key]
            self.trace.remove(number)

    def _forget(self, key: int, _reference: object) -> None:
        self._remove(key)

    # --- where -----------------------------------------------------------------------------------------------------

    def _remember_node(self) -> None:
        # Autograd makes an operation's node, and counts it, before the operation itself comes by here. Later ones that make no node
        # find the same number, and so do those of a custom Function, which run with gradients off.
        newest = torch._C._autograd._get_sequence_nr() - 1
        if newest not in self._places:
            self._places[newest] = self._forward_place()

    def _place(self) -> Place:
        node = None if torch.is_grad_enabled() else torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() in self._places:
            return self._places[node._sequence_nr()]
        return self._forward_place()

    def _forward_place(self) -> Place:
        file, line, function = _line_of_the_user(self.drivers)
        return Place(self.modules[-1] if self.modules else "", file, line, function)


def _line_of_the_user(drivers: frozenset[CodeType]) -> tuple[str, int, str]:
    """The innermost line that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code not in drivers:
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_THE_USERS):
            return code.co_filename, frame.f_lineno, code.co_qualname
        frame = frame.f_back
    return NOWHERE.file, NOWHERE.line, NOWHERE.function


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that hold this one's memory."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _number(item: Any, tensor: torch.Tensor) -> Any:
    """What an optimizer reads of its own state, the number of its step mostly. It changes no size: where it is not known, any will do."""
    try:
        return item(tensor)
    except DataDependentOutputException:
        return 0.5 if tensor.is_floating_point() else 1
