"""The content of small tensors of integers and truth values, as far as it follows from what made them.

Fake tensors have sizes and no values. But masks, positions and ids decide what code does (`if torch.all(mask == 1)`):
what comes from `ones`, `arange`, `randint` and the like, or from real tensors, is also computed for real, so that it
can be read. Random ids are a sample of what a program could have. A single random number is 0.5: what happens rarely,
such as leaving out a layer, does not. So is a single computed one, as of a loss, which most programs read to log it or
compare it with a number; computed numbers are finite, and one element is equal where equal ones are counted. Other
computed integers and truth values cannot be read, as sizes may follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_LARGEST = 2**20  # elements: beyond that it would cost time, and such masks are no more decided by
_LARGEST_OF_FLOATS = 2**12  # of rates and positions
_aten = torch.ops.aten
_MAKERS = frozenset(
    getattr(_aten, name)
    for name in (
        "ones", "zeros", "full", "arange", "randint", "randperm", "scalar_tensor", "ones_like", "zeros_like",
        "full_like", "randint_like", "new_ones", "new_zeros", "new_full",
    )
)  # fmt: skip
_SCHEDULES = frozenset((_aten.linspace, _aten.logspace))
_RANDOM, _IS_IN, _EQUAL, _UNEQUAL = _aten.rand, _aten.isin, _aten.eq, _aten.ne
_ARE_FINITE = {_aten.isnan: False, _aten.isinf: False, _aten.isfinite: True}
_COUNTING = frozenset((_aten.sum, _aten.add, _aten.add_))
_COMPARISONS = frozenset((_aten.lt, _aten.le, _aten.gt, _aten.ge))
NUMBER = 0.5
"""What stands for a single number that is random or computed."""
_SPOILT = "_is_spoilt"  # attribute of a storage that something of unknown content was written to
_READ = _aten._local_scalar_dense


class KnownContents:
    """Knows the content of fake tensors, by following every operator on them."""

    def __init__(self) -> None:
        self._real = WeakTensorKeyDictionary()
        self._equal = WeakTensorKeyDictionary()  # which computed elements are equal
        self._assumptions = WeakTensorKeyDictionary()  # single computed integers and truth values that decide no size
        self.notes: list[str] = []  # what was assumed

    def can_read(self, function: Any, args: tuple[Any, ...]) -> bool:
        """Whether this operator reads a value that is known."""
        return function.overloadpacket is _READ and self.of(args[0]) is not None

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor with the content of this one."""
        if type(tensor) is torch.Tensor:
            return tensor
        real = self._real.get(tensor)
        if real is None:
            real = getattr(tensor, "constant", None)  # what the fake mode itself knows, as of torch.tensor(3)
        return None if real is None or hasattr(real.untyped_storage(), _SPOILT) else real

    def know(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """This is the content of a fake tensor, if it is small."""
        if _is_small(real):
            self._real[fake] = real

    def number_for(self, tensor: torch.Tensor) -> float | int | None:
        """What stands for the only element of a tensor of unknown content, if it is a number that decides no size."""
        if tensor.is_floating_point():
            return NUMBER
        found: int | None = self._assumptions.get(tensor)
        return found

    def follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Compute the content of the results, which are fake, if that of all arguments is known."""
        assumed = self._assumed(function, args, result)
        if assumed is not None:
            with no_dispatch():
                self._real[result] = torch.full(result.shape, assumed, dtype=result.dtype)
            return
        if function.overloadpacket in _COMPARISONS:
            self._compare(function, args, result)
        is_maker = function.overloadpacket in _MAKERS or function.overloadpacket in _SCHEDULES
        is_counting = function.overloadpacket is _EQUAL or function.overloadpacket in _COUNTING
        if not is_maker and ((not self._real and not is_counting) or self._is_computed(args)):
            return  # most calls end here
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_known = is_maker or (bool(given) and all(self.of(tensor) is not None for tensor in given))
        values = [*([] if is_maker else given), *tree_leaves(result)]
        is_few = _is_small if function.overloadpacket in _MAKERS else _is_readable
        if not is_known or not all(map(is_few, values)):
            self._note_count(function, given, result)
            self._note_writes(function, args)
            return
        with no_dispatch():
            real_args, real_kwargs = tree_map(self._substitute, (args, kwargs))
            computed = function(*real_args, **real_kwargs)
        for fake, real in zip(tree_leaves(result), tree_leaves(computed), strict=True):
            if isinstance(fake, torch.Tensor):
                self._real[fake] = real

    def follow_graph(self, graph: Callable[..., Any], given: Sequence[Any], results: Sequence[Any]) -> None:
        """Compute the single integers and truth values among the results of a graph, by its operators."""
        places = [place for place, one in enumerate(results) if _is_number_to_read(one)]
        if not places:
            return
        copies = [one.data if isinstance(one, torch.Tensor) else one for one in given]  # the graph may write to them
        for copy, one in zip(copies, given, strict=True):
            real = self.of(one) if isinstance(one, torch.Tensor) else None
            if real is not None:
                self._real[copy] = real.clone()
        mode = results[places[0]].fake_mode
        with _disable_current_modes(), mode, _Following(self), torch.no_grad():
            again = graph(*copies)
        for place in places:
            for known in (self._real, self._assumptions):
                if again[place] in known:
                    known[results[place]] = known[again[place]]

    def _assumed(self, function: Any, args: tuple[Any, ...], result: Any) -> float | bool | None:
        """A content that is taken for granted, so that a program goes on."""
        if function.overloadpacket is _RANDOM and result.numel() == 1:
            return NUMBER
        if function.overloadpacket is _IS_IN and isinstance(args[0], torch.Tensor) and self.of(args[0]) is None:
            self.notes = ["no computed word is one to stop at: generation is estimated at its full length"]
            return False
        return self._if_finite(function, args, result)

    def _if_finite(self, function: Any, args: tuple[Any, ...], result: Any) -> bool | None:
        """What a test for numbers that are not finite says of finite ones. Some of these tests compare."""
        kind = function.overloadpacket
        is_test = kind in _ARE_FINITE or kind is _EQUAL or kind is _UNEQUAL
        if not is_test or not args[0].is_floating_point() or result.numel() > _LARGEST:
            return None
        if kind in _ARE_FINITE:
            return _ARE_FINITE[kind]
        is_with_itself = args[1] is args[0]
        is_with_infinity = isinstance(args[1], float) and math.isinf(args[1])
        return (kind is _EQUAL) == is_with_itself if is_with_itself or is_with_infinity else None

    def read(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor of one element."""
        real = self.of(tensor)
        assert real is not None, "can_read() has said so"
        with no_dispatch():
            return real.item()

    def _is_computed(self, args: tuple[Any, ...]) -> bool:
        """Whether the first argument is a tensor of numbers that were computed: it is neither known nor spoilt."""
        is_of_numbers = bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()
        return is_of_numbers and self._real.get(args[0]) is None

    def _substitute(self, value: Any) -> Any:
        """The real tensor; of one that only gives its shape, an empty one."""
        if not isinstance(value, torch.Tensor):
            return value
        real = self.of(value)
        return torch.empty(value.shape, dtype=value.dtype) if real is None else real

    def _note_count(self, function: Any, given: list[torch.Tensor], result: Any) -> None:
        """Remember what counts equal elements."""
        kind = function.overloadpacket
        if kind is _EQUAL and len(given) == 2:
            self._equal[result] = True
        elif kind in _COUNTING and result.numel() == 1:
            unknown = [tensor for tensor in given if self.of(tensor) is None]
            if all(tensor in self._equal or tensor in self._assumptions for tensor in unknown):
                self._assumptions[result] = 1

    def _compare(self, function: Any, args: tuple[Any, ...], result: Any) -> None:
        """Remember how single numbers compare, of which one is computed."""
        given = [value for value in args if isinstance(value, torch.Tensor)]
        if result.numel() == 1 and all(tensor.is_floating_point() for tensor in given):
            with no_dispatch():
                self._assumptions[result] = bool(function(*map(self._number, args)))

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        real = self.of(value)
        return torch.tensor(NUMBER) if real is None else real

    def _note_writes(self, function: Any, args: tuple[Any, ...]) -> None:
        if function._schema.is_mutable:
            for tensor in tree_leaves(args):
                if isinstance(tensor, torch.Tensor) and tensor in self._real:
                    setattr(self._real[tensor].untyped_storage(), _SPOILT, True)


class _Following(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped where types are checked
    """Follows every operator, on the only device."""

    def __init__(self, contents: KnownContents) -> None:
        super().__init__()
        self._contents = contents

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        result = function(*args, **kwargs)
        self._contents.follow(function, args, kwargs, result)
        return result


def _is_number_to_read(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.numel() == 1 and not value.is_floating_point()


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return not value.is_floating_point() and not value.is_complex() and value.numel() <= _LARGEST


def _is_readable(value: Any) -> bool:
    return _is_small(value) or value.numel() <= _LARGEST_OF_FLOATS
