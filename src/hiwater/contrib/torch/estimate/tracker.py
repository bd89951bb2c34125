"""Tracks every storage of a step on fake tensors: when it is made and freed, and by which module and line.

It runs in the process of the estimate, never in the user's. The tensors are fake, on `cpu`: they have shapes and
storages with sizes, but no memory. The mode is above FakeTensorMode, so it sees autograd's operations in forward and
backward.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hiwater.contrib.torch.estimate import arrivals, ranks, streams
from hiwater.contrib.torch.estimate.contents import NUMBER, KnownContents
from hiwater.contrib.torch.estimate.hidden import HiddenStorage, Source
from hiwater.contrib.torch.estimate.one_device import is_linear_running
from hiwater.contrib.torch.estimate.trace import LIBRARIES, NOWHERE, CodePlace, StepTrace, Storage

_OWN_FOLDERS = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, __file__))
_NOT_THE_USERS = (*_OWN_FOLDERS, "<frozen", contextlib.__file__, functools.__file__)
_DISPATCH_FOLDERS = tuple(
    os.path.join(os.path.dirname(torch.__file__), name) for name in ("_dynamo", "_compile.py", "utils", "_ops.py")
)
_AUTOGRAD_FOLDER = os.path.dirname(torch.autograd.__file__) + os.sep
_ITEM = "aten::_local_scalar_dense"
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
# What backward formulas write to zeros of their own, but not if there is a subclass (`areAnyTensorSubclassLike` in
# torch/csrc/autograd/FunctionsManual.cpp).
_IN_PLACE = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
}
_INDEX, _NONZERO = torch.ops.aten.index.Tensor, torch.ops.aten.nonzero.default
_DROPOUT = torch.ops.aten.native_dropout.default  # makes its mask before its output (Dropout.cu in ATen)
# The reference counts if one holder calls an operator: the holder, the arguments of the call twice, and the argument of
# the count itself.
_USES_OF_ONE_HOLDER, _STORAGE_USES_OF_ONE_HOLDER = 4, 2


def _nodes() -> int:
    """The number of nodes that autograd has made in this thread."""
    count: int = torch._C._autograd._get_sequence_nr()
    return count


class StorageTracker(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped where types are checked
    """Tracks storages in `trace` while `is_recording`, and before that those on the card. At all times it keeps every
    tensor on the only device."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        arrivals.follow(self)
        self.trace = StepTrace()
        self.is_recording = False
        self.phase = ""
        # Our code that calls the user's: its callers are no lines of the step.
        self.drivers: frozenset[CodeType] = frozenset()
        self.contents = KnownContents()
        self.reads: dict[str, None] = {}  # lines that read a computed number
        self.hidden: list[Source] = []
        self.enlarge: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None = None  # results, as on a card
        self.modules: list[str] = []  # names of the modules whose forward is running, outermost first
        self._numbers: dict[int, int] = {}  # storage's address -> its number in the trace
        self._sizes: dict[int, int] = {}
        self._watchers: dict[int, Any] = {}
        self._makers: dict[int, int] = {}  # storage's address -> sequence number of the node whose backward made it
        self._nodes_at_end = 0  # of the last backward or optimizer
        self._places: dict[
            int, CodePlace
        ] = {}  # autograd's sequence number -> where the forward of that node was called

    def begin(self, step: int, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self._nodes_at_end = _nodes()
        self.trace.begin(step, phase)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if isinstance(function, HigherOrderOperator):
            # Of compiled programs, such as one that keeps the state of a generator.
            result = function(*args, **kwargs)
            for value in tree_leaves(result):
                if isinstance(value, FakeTensor):
                    self.track(value)
            return result
        if any(ranks.is_distributed(kind) for kind in types):
            return NotImplemented  # it calls operators on its parts, which come here
        if ranks.is_of_table(function, args, kwargs):
            with no_dispatch():
                table = function(*args, **kwargs)
            if ranks.is_on_card(function):
                self.track(table)
            return table
        device = torch.device(kwargs.get("device") or "cpu").type
        if device != "cpu":
            kwargs["device"] = torch.device("cpu")
        if ranks.are_planning():
            return function(*args, **kwargs)
        if self.contents.can_read(function, args):
            return self.contents.read(args[0])
        if function.name() == _ITEM and self.phase != "optimizer":
            number = self.contents.number_for(args[0])
            if number is not None:
                self._note_read()
                return number
        if self.phase == "optimizer" and function.name() == _ITEM:
            return _number(function, args[0])
        if (
            self.is_recording
            and function is _ADD
            and not kwargs
            and (is_linear_running() or self._adds_in_place(*args))
        ):
            function = _ADD_IN_PLACE
        elif function in _IN_PLACE and self.is_recording and self._fills_its_own(args[0]):
            function = _IN_PLACE[function]
        if self.phase == "after" and self.is_recording and _nodes() > self._nodes_at_end:
            self.begin(self.trace.phase_starts[-1].step, "forward")  # an operation with a node for backward
        if function is _INDEX:
            args = (args[0], self._positions(args[1]))
        places = self._places_in(args[0]) if function is _NONZERO else None
        result = function(*args, **kwargs) if places is None else torch.stack(places, 1)
        if self.enlarge is not None:
            self.enlarge(function, args, kwargs, result)
        self.contents.follow(function, args, kwargs, result)
        is_on_card = (
            self.is_recording or device not in arrivals.HOST or arrivals.are_noted(args) or ranks.are_reducing()
        )
        if is_on_card and not self.is_recording:
            arrivals.note(result)
        hidden = [each for source in self.hidden for each in source(function, args, kwargs)]
        if is_on_card:
            self._remember_node()
            early = self._add_hidden([each for each in hidden if each.is_early])
            values = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
            for value in reversed(values) if function is _DROPOUT else values:
                self.track(value)
            for number in reversed(early + self._add_hidden([each for each in hidden if not each.is_early])):
                self.trace.remove(number)
        else:  # what is kept exists before the first step, wherever the building of the model made it
            self._add_hidden([each for each in hidden if each.category])
        return result

    def _adds_in_place(self, old: torch.Tensor, new: object) -> bool:
        """Whether autograd adds a gradient in place to an existing one. For plain tensors it does if that one has no
        other reference (InputBuffer::accumulate in torch/csrc/autograd), for fake ones never."""
        node = torch._C._current_autograd_node()
        if self.phase != "backward" or node is None or torch.is_grad_enabled() or not isinstance(new, torch.Tensor):
            return False
        if old.shape != new.shape or old.dtype != new.dtype or old.layout != torch.strided or old.device != new.device:
            return False
        if not _is_called_by_autograd():
            return False
        key = old.untyped_storage()._cdata
        made_by = self._makers.get(key)
        return (
            made_by is not None
            and made_by != node._sequence_nr()  # its own formula, not the engine
            and _is_dense(old)
            and old._use_count() <= _USES_OF_ONE_HOLDER
            and torch._C._storage_Use_Count(key) <= _STORAGE_USES_OF_ONE_HOLDER
        )

    def _fills_its_own(self, zeros: torch.Tensor) -> bool:
        """Whether autograd writes to zeros that the running node has made."""
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled() or not _is_called_by_autograd():
            return False
        return bool(self._makers.get(zeros.untyped_storage()._cdata) == node._sequence_nr())

    def track(self, tensor: torch.Tensor, category: str = "", place: CodePlace | None = None) -> None:
        """Add the tensor's storages, unless they are known. A category given here replaces theirs."""
        for part in arrivals.parts(tensor):
            storage = part.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self._numbers and self._sizes[key] != size:
                self._remove(key)  # resized in place: the allocator allocates a new block and frees the old one
            if key not in self._numbers:
                self._enter(storage, key, size, place or self._place())
            if category:
                tracked = self.trace.storages[self._numbers[key]]
                tracked.category, tracked.place = category, place or tracked.place

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Follow a known storage that got another size."""
        key = storage._cdata
        if key in self._numbers and self._sizes[key] != storage.nbytes():
            place = self.trace.storages[self._numbers[key]].place
            self._remove(key)
            self._enter(storage, key, storage.nbytes(), place)

    def taken(self, real: torch.Tensor) -> torch.Tensor:
        """A fake for a real tensor, with its content if that is small."""
        with torch.no_grad():
            fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
        self.contents.know(fake, real)
        return fake

    def follow_graph(self, graph: Callable[..., Any], given: Sequence[Any], results: Sequence[Any]) -> None:
        """Know the single numbers among the results as if the operators of the graph had run."""
        self.contents.follow_graph(graph, given, results)

    def _places_in(self, mask: torch.Tensor) -> list[torch.Tensor] | None:
        """Where a tensor of known content is not zero, by dimension."""
        real = self.contents.of(mask)
        if real is None or real.dim() == 0:
            return None
        with no_dispatch():
            found = real.nonzero(as_tuple=True)
        return [self.taken(one) for one in found]

    def _positions(self, indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Positions instead of known masks, as operators make them: the size of the result follows from them."""
        made: list[torch.Tensor | None] = []
        for index in indices:
            is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
            places = self._places_in(index) if is_mask else None
            for place in places or ():
                self.track(place)
            made += [index] if places is None else places
        return made

    def _note_read(self) -> None:
        place = self._forward_place()
        file, line, _ = place.own or place.innermost
        self.reads[f"{file}:{line}"] = None

    def _add_hidden(self, made: list[HiddenStorage]) -> list[int]:
        """Add these storages, and return the numbers of those that the operator's end frees."""
        added = []
        for each in made:
            stream = streams.current().stream_id
            storage = Storage(each.size, self._place(), self.phase, each.category, each.most, stream)
            number = self.trace.add(storage)
            added += [] if each.category else [number]
        return added

    def number_of(self, tensor: torch.Tensor) -> list[int]:
        """The numbers of this tensor's known storages in the trace."""
        keys = [part.untyped_storage()._cdata for part in arrivals.parts(tensor)]
        return [self._numbers[key] for key in keys if key in self._numbers]

    def alive(self) -> list[int]:
        """The numbers of the live storages."""
        return list(self._numbers.values())

    def _enter(self, storage: torch.UntypedStorage, key: int, size: int, place: CodePlace) -> None:
        # Autograd computes gradients with gradient mode off. If it is on, a checkpoint runs its forward again.
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        phase = "recompute" if node is not None and torch.is_grad_enabled() else self.phase
        if node is not None:
            self._makers[key] = node._sequence_nr()
        stream = streams.current().stream_id
        self._numbers[key] = self.trace.add(Storage(size, place, phase, ranks.category(), stream=stream))
        self._sizes[key] = size
        self._watchers[key] = weakref.ref(storage, partial(self._forget, key))

    def _remove(self, key: int) -> None:
        number = self._numbers.pop(key, None)
        self._watchers.pop(key, None)
        self._makers.pop(key, None)
        if number is not None:
            size = self._sizes.pop(key)
            self.trace.remove(number)
            if ranks.are_replacing_buckets():  # one that may be held for longer
                old = self.trace.storages[number]
                self.trace.add(Storage(0, old.place, self.phase, ranks.BUCKETS, size, old.stream))

    def _forget(self, key: int, _reference: object) -> None:
        self._remove(key)

    # --- where -----------------------------------------------------------------------------------------------------

    def _remember_node(self) -> None:
        # Autograd makes and counts an operation's node before the operation arrives here. Later operations without a
        # node find the same number, also those of a custom Function, which run with gradient mode off.
        newest = torch._C._autograd._get_sequence_nr() - 1
        if newest not in self._places:
            self._places[newest] = self._forward_place()

    def _place(self) -> CodePlace:
        node = None if torch.is_grad_enabled() else torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() in self._places:
            return self._places[node._sequence_nr()]
        return self._forward_place()

    def _forward_place(self) -> CodePlace:
        lines = _lines_of_the_user(self.drivers)
        innermost = next(lines, NOWHERE.innermost)
        is_own = not innermost[0].startswith(LIBRARIES)
        own = None if is_own else next((line for line in lines if not line[0].startswith(LIBRARIES)), None)
        return CodePlace(self.modules[-1] if self.modules else "", *innermost, own)


def _lines_of_the_user(drivers: frozenset[CodeType]) -> Iterator[tuple[str, int, str]]:
    """The lines that belong neither to torch nor to hiwater, from the innermost on."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code not in drivers:
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_THE_USERS):
            yield code.co_filename, frame.f_lineno, code.co_qualname
        frame = frame.f_back


def _is_called_by_autograd() -> bool:
    """Whether autograd itself called the operator, and not a hook or a custom Function."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.startswith(_DISPATCH_FOLDERS):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_AUTOGRAD_FOLDER)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are contiguous in memory, in any order of dimensions."""
    dense = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != dense:
                return False
            dense *= size
    return True


def _number(item: Any, tensor: torch.Tensor) -> Any:
    """The value that an optimizer reads from its state, usually the number of its step. It changes no size, so any
    value will do."""
    try:
        return item(tensor)
    except DataDependentOutputException:
        return NUMBER if tensor.is_floating_point() else 1
