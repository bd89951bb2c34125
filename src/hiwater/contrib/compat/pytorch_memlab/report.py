"""The report in the format of pytorch_memlab, for the drop-in module.

Differences from the original: sizes are bytes (release 0.3.2 multiplied them by the element size), memory on the CPU is
not rounded up, buffers have their names, tensors that only autograd holds have rows, and `device` may be a string or a
number.
"""

from __future__ import annotations

import sys

from hiwater.contrib.torch import modules
from hiwater.contrib.torch.modules import without_place
from hiwater.contrib.torch.records import Category
from hiwater.contrib.torch.reporter import MemReporter, device_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hiwater.contrib.torch.records import DeviceTensors, StorageEntry, TensorReport, TensorView

_RULE = "-" * 79
_DIFFERS = "Memory differs due to the matrix alignment or invisible gradient buffer tensors"


class ClassicMemReporter(MemReporter):
    """`MemReporter` with pytorch_memlab's output: names from the given model and optimizers, numbers for all other
    tensors."""

    def print_stats(self, verbose: bool = False, target_device: Any = None) -> None:
        """Print the figures of the last `get_stats()`. `verbose` shows with which tensor a storage is shared."""
        device = None if target_device is None else device_name(target_device)
        sys.stdout.write(text(self._last(), self._given_names(), verbose, device))

    def _given_names(self) -> set[str]:
        held = [one for name, model in self._models.items() for one in modules.of_module(model, name)]
        names = {id(one.tensor): one.name for one in reversed(held)}
        states = [
            one
            for optimizer in self._optimizers
            for one in modules.of_optimizer(optimizer, type(optimizer).__name__, names)
        ]
        return {one.name for one in (*held, *states)}


def text(report: TensorReport, given: set[str], verbose: bool = False, device: str | None = None) -> str:
    """The whole table. `given` are the names to show; tensors with other names are numbered."""
    lines = [_line("Element type", "Size", "Used MEM")]
    names = _Names(given)
    for one in sorted(report.devices, key=lambda one: one.device):
        if device is None or one.device == device:
            lines += _device(one, names, verbose)
    return "\n".join(lines) + "\n"


def classic_size(count: int) -> str:
    """Two decimals and one letter, in powers of 1024: `512.00B`, `4.00M`."""
    value = float(count)
    for letter in "BKMGTP":
        if abs(value) < 1024 or letter == "P":
            break
        value /= 1024
    return f"{value:.2f}{letter}"


def _line(name: str, size: str, used: str) -> str:
    return f"{name:<40}{size:>20}{used:>10}"


class _Names:
    """Names as printed: given ones, or a class and a running number."""

    def __init__(self, given: set[str]) -> None:
        self._given = given
        self._numbered: dict[str, str] = {}

    def of(self, view: TensorView) -> str:
        name = self._whole(view.name, view)
        return f"{name}.{view.part}" if view.part else name

    def _whole(self, name: str, view: TensorView) -> str:
        bare = without_place(name)
        if view.category is Category.gradient:
            owner = name.replace(".grad", "", 1) if name != bare else bare.removesuffix(".grad")
            return self._numbered.get(owner, without_place(owner)) + ".grad"
        if view.category is Category.saved:
            return name.partition(" ")[0]
        if name in self._given:
            return name
        if name not in self._numbered:
            self._numbered[name] = f"{view.kind}{len(self._numbered)}"
        return self._numbered[name]


def _device(one: DeviceTensors, names: _Names, verbose: bool) -> Iterator[str]:
    yield _RULE
    yield f"Storage on {one.device}"
    elements = used = 0
    for view, entry in _ordered(one):
        is_owner = view is entry.owner
        name = names.of(view)
        if verbose and not is_owner:
            name = f"{name}(->{names.of(entry.owner)})"
        taken = entry.block_bytes if is_owner else 0
        yield _line(name, _shape(view), classic_size(taken))
        elements += view.numel
        used += taken
    yield _RULE
    yield f"Total Tensors: {elements} \tUsed Memory: {classic_size(used)}"
    allocated = one.identity.allocated_bytes
    if one.device != "cpu" and allocated is not None:
        yield f"The allocated memory on {one.device}: {classic_size(allocated)}"
        if allocated != used:
            yield _DIFFERS
    yield _RULE


def _ordered(one: DeviceTensors) -> list[tuple[TensorView, StorageEntry]]:
    """Tensors in the order in which they were found, each gradient after its tensor. A saved tensor is listed only
    if it owns its storage."""
    views = [(view, entry) for entry in one.storages for view in (entry.owner, *entry.others) if view.numel]
    shown = [(view, entry) for view, entry in views if view.category is not Category.saved or view is entry.owner]
    owners = {_gradient_name(view.name): view.number for view, _ in shown}

    def place(pair: tuple[TensorView, StorageEntry]) -> tuple[int, int]:
        view = pair[0]
        is_gradient = view.category is Category.gradient
        return (owners.get(view.name, view.number), 1) if is_gradient else (view.number, 0)

    return sorted(shown, key=place)


def _gradient_name(name: str) -> str:
    bare = without_place(name)
    return f"{bare}.grad{name[len(bare) :]}"


def _shape(view: TensorView) -> str:
    return str(tuple(view.shape)) if view.shape else "(1,)"
