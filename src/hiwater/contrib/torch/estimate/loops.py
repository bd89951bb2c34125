"""Lets a program's own loop run for some steps: over its loader, or until it has stepped often enough.

A loader makes its batches in this process, with real numbers. A pass over one ends once the optimizer has stepped a few
times in it; a pass without backward, as of a validation, after as many batches. The third pass over the same data, or a
loop without a loader that goes on, ends the function (`LoopEnds`).
The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from hiwater.contrib.torch.estimate import arrivals

_PASSES = 2  # over the same data: the second begins with what the first and a validation have left
_LONG = 4  # times the steps that are enough: a loop without a loader that goes on


class LoopEnds(BaseException):
    """Enough of a loop has run."""


class _Progress:
    """How far the function that runs has come."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begin(1)

    def begin(self, steps: int) -> None:
        """The function is called, and `steps` of an optimizer are enough."""
        self.enough = steps
        self.forwards = self.backwards = 0
        self.steps: Counter[int] = Counter()  # by the identity of optimizers
        self.passes: Counter[tuple[int, bool]] = Counter()  # by the identity of data, with gradients and without

    @property
    def is_enough(self) -> bool:
        """Whether each optimizer that has stepped did so often enough; over a loader, with the state of its first
        step."""
        return bool(self.steps) and min(self.steps.values()) >= (_PASSES if self.passes else self.enough)

    def step(self, optimizer: Any) -> None:
        """An optimizer steps. Raises LoopEnds."""
        if self.is_enough and self.steps[id(optimizer)] >= _LONG * self.enough:
            self.end()
        self.steps[id(optimizer)] += 1

    def end(self) -> None:
        self.note()
        raise LoopEnds

    def note(self) -> None:
        """Note that a loop is not run to its end."""
        self.notes = ["the program's own loop runs a few steps and batches of each pass, not all"]


progress = _Progress()


class _FewBatches(_SingleProcessDataLoaderIter):  # type: ignore[misc]  # torch is untyped where types are checked
    def __init__(self, loader: Any) -> None:
        values = vars(loader)
        given = {name: values[name] for name in ("num_workers", "timeout")}
        values.update(num_workers=0, timeout=0)
        try:
            with _disable_current_modes():
                super().__init__(loader)
        finally:
            values.update(given)
        self._begin()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with _disable_current_modes():
            super()._reset(loader, first_iter)
        self._begin()

    def _begin(self) -> None:
        which = id(self._dataset), torch.is_grad_enabled()  # a validation may read the same
        if progress.steps and progress.passes[which] >= _PASSES:
            progress.end()
        progress.passes[which] += 1
        self._given = 0
        self._before = progress.forwards, progress.backwards, progress.steps.copy()

    @property
    def _is_enough(self) -> bool:
        forwards, backwards, steps = self._before
        stepped = (progress.steps - steps).values()
        is_validation = progress.forwards > forwards and progress.backwards == backwards
        return self._given >= progress.enough and (is_validation or max(stepped, default=0) >= progress.enough)

    def _next_data(self) -> Any:
        if self._is_enough:
            progress.note()
            raise StopIteration
        with _disable_current_modes():
            index = self._next_index()
            batch = self._dataset_fetcher.fetch(index)
        if self._dataset_kind == _DatasetKind.Map and any(isinstance(one, FakeTensor) for one in tree_leaves(batch)):
            batch = self._dataset_fetcher.fetch(index)  # what is known of their content is followed now
        self._given += 1
        return tree_map(arrivals.taken, batch)


def install() -> None:
    """Let loaders give few batches, which are as large as theirs."""
    if hasattr(DataLoader, "_get_iterator"):
        DataLoader._get_iterator = lambda loader: _FewBatches(loader)  # noqa: PLW0108 - a class is no method
