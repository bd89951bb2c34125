"""The content of small tensors of integers and truth values, as far as it follows from what made them.

Fake tensors have sizes and no values. But masks, positions and ids decide what code does (`if torch.all(mask == 1)`):
what comes from `ones`, `arange`, `randint` and the like is also computed for real, so that it can be read. Random
ids are a sample of what a program could have. A single random number is 0.5: what happens rarely, such as leaving out
a layer, does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_LARGEST = 2**20  # elements: beyond that it would cost time, and such masks are no more decided by
_aten = torch.ops.aten
_MAKERS = frozenset(
    getattr(_aten, name)
    for name in (
        "ones", "zeros", "full", "arange", "randint", "scalar_tensor", "ones_like", "zeros_like", "full_like",
        "randint_like", "new_ones", "new_zeros", "new_full",
    )
)  # fmt: skip
_RANDOM, _IS_IN = _aten.rand, _aten.isin
_READ = _aten._local_scalar_dense


class KnownContents:
    """Knows the content of fake tensors, by following every operator on them."""

    def __init__(self) -> None:
        self._real = WeakTensorKeyDictionary()
        self._spoilt: set[int] = set()  # storages that something of unknown content was written to
        self.notes: list[str] = []  # what was assumed

    def can_read(self, function: Any, args: tuple[Any, ...]) -> bool:
        """Whether this operator reads a value that is known."""
        return function.overloadpacket is _READ and self.of(args[0]) is not None

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor with the content of this one."""
        real = self._real.get(tensor)
        if real is None:
            real = getattr(tensor, "constant", None)  # what the fake mode itself knows, as of torch.tensor(3)
        return None if real is None or real.untyped_storage()._cdata in self._spoilt else real

    def follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Compute the content of the results, which are fake, if that of all arguments is known."""
        assumed = self._assumed(function, args, result)
        if assumed is not None:
            with no_dispatch():
                self._real[result] = torch.full(result.shape, assumed, dtype=result.dtype)
            return
        is_maker = function.overloadpacket in _MAKERS
        if not is_maker and (not self._real or self._is_computed(args)):
            return  # most calls end here
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_known = is_maker or (bool(given) and all(self.of(tensor) is not None for tensor in given))
        values = [*([] if is_maker else given), *tree_leaves(result)]
        if not is_known or not all(map(_is_small if is_maker else _is_readable, values)):
            self._note_writes(function, args)
            return
        with no_dispatch():
            real_args, real_kwargs = tree_map(self._substitute, (args, kwargs))
            computed = function(*real_args, **real_kwargs)
        for fake, real in zip(tree_leaves(result), tree_leaves(computed), strict=True):
            if isinstance(fake, torch.Tensor):
                self._real[fake] = real

    def _assumed(self, function: Any, args: tuple[Any, ...], result: Any) -> float | bool | None:
        """A content that is taken for granted, so that a program goes on."""
        if function.overloadpacket is _RANDOM and result.numel() == 1:
            return 0.5
        if function.overloadpacket is _IS_IN and isinstance(args[0], torch.Tensor) and self.of(args[0]) is None:
            self.notes = ["no computed word is one to stop at: generation is estimated at its full length"]
            return False
        return None

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

    def _note_writes(self, function: Any, args: tuple[Any, ...]) -> None:
        if function._schema.is_mutable:
            for tensor in tree_leaves(args):
                if isinstance(tensor, torch.Tensor) and tensor in self._real:
                    self._spoilt.add(self._real[tensor].untyped_storage()._cdata)


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return not value.is_floating_point() and not value.is_complex() and value.numel() <= _LARGEST


def _is_readable(value: Any) -> bool:
    return _is_small(value) or value.numel() == 1
