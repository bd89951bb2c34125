"""`MemReporter`: the tensors of a process by name, storage and holder, and the sum that must match the allocator's
figure."""

from __future__ import annotations

import gc
import sys

import torch

from hiwater.contrib.torch import collect, identity
from hiwater.contrib.torch.identity import entry_of
from hiwater.contrib.torch.records import TensorReport
from hiwater.contrib.torch.storages import Place
from hiwater.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hiwater.contrib.torch.watch import StorageWatch


class MemReporter:
    """Reports which tensors hold memory, on every device.

    `model` is a module, a mapping from names to modules, or a sequence of them. Without it, models are found, and named
    by the variables that lead to them. `pre_collect` runs Python's garbage collector first. `watch` is a `StorageWatch`
    that began before the models were built: on the CPU the sum is compared with it. `unpack` is for torch before 2.10:
    there, the tensors that autograd saved can only be seen by running unpack hooks, which may compute a checkpoint
    again.

    A report keeps no tensor alive. A reporter keeps only the given models and optimizers alive.
    """

    def __init__(
        self,
        model: Any = None,
        pre_collect: bool = False,
        *,
        watch: StorageWatch | None = None,
        unpack: bool = False,
    ) -> None:
        """Raises BadRequest if `model` is something else."""
        self._models = _models(model)
        self._optimizers: list[Any] = []
        self._pre_collect = pre_collect
        self._watch = watch
        self._unpack = unpack
        self._collected: collect.Collection | None = None
        self._data: TensorReport | None = None

    def add_optimizer(self, optimizer: Any) -> None:
        """Report this optimizer, too. Only needed if `gc.freeze()` hides it: others are found.

        Raises BadRequest if it is no optimizer.
        """
        if not issubclass(type(optimizer), torch.optim.Optimizer):
            raise BadRequest(
                f"{type(optimizer).__name__} is not an optimizer", "give an object of a class from torch.optim"
            )
        self._optimizers.append(optimizer)

    def collect_tensor(self) -> None:
        """Find all tensors now: the first step of `data()`."""
        if self._pre_collect:
            gc.collect()
        self._collected = collect.collect(self._models, self._optimizers, self._unpack)

    def get_stats(self) -> TensorReport:
        """Add up the tensors of `collect_tensor()` and release them: the second step of `data()`."""
        if self._collected is None:
            self.collect_tensor()
        collected, self._collected = self._collected, None
        assert collected is not None
        without = tuple(entry_of(one, 0) for one in collected.holdings.values() if one.place is not Place.memory)
        devices = identity.devices_of(collected.holdings, self._watch)
        self._data = TensorReport(devices, without, tuple(collected.notes))
        return self._data

    def data(self, device: Any = None) -> TensorReport:
        """The tensors now, on all devices or on `device` (a name, the number of an accelerator, a torch.device)."""
        self.collect_tensor()
        return _only(self.get_stats(), device)

    def report(self, verbose: bool = False, device: Any = None) -> None:
        """Print the tensors now. `verbose` shows every tensor, and all that share a storage."""
        self.collect_tensor()
        self.get_stats()
        self.print_stats(verbose, device)

    def print_stats(self, verbose: bool = False, target_device: Any = None) -> None:
        """Print the figures of the last `get_stats()` or `report()`."""
        from hiwater.contrib.torch import report_text

        sys.stdout.write(report_text.text(_only(self._last(), target_device), verbose))

    def to_dict(self) -> dict[str, Any]:
        """The last figures as data for JSON; taken now if there are none."""
        return self._last().to_dict()

    def __str__(self) -> str:
        """The text of `print_stats()`."""
        from hiwater.contrib.torch import report_text

        return report_text.text(self._last())

    def _repr_html_(self) -> str:
        from hiwater.contrib.torch import report_html

        return report_html.page(self._last())

    def _last(self) -> TensorReport:
        return self._data if self._data is not None else self.get_stats()


def device_name(device: Any) -> str:
    """The name of a device: `cuda:0` for `cuda:0`, `torch.device("cuda", 0)` and 0. Without a number it is the current
    accelerator.

    Raises BadRequest if `device` names none.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError, AssertionError) as error:
        problem = str(error).partition("\n")[0].rstrip(".")
        raise BadRequest(f"{device!r} is not a device ({problem})", "write cpu, cuda:0, 0, or a torch.device") from None
    if place.type in {"cpu", "meta"}:
        return str(place.type)
    if place.index is not None:
        return str(place)
    module: Any = getattr(torch, place.type, None)
    # Reading the current device would start one that does not run.
    runs = module is not None and getattr(module, "is_initialized", lambda: True)()
    index = module.current_device() if runs and hasattr(module, "current_device") else 0
    return f"{place.type}:{index}"


def _only(report: TensorReport, device: Any) -> TensorReport:
    if device is None:
        return report
    name = device_name(device)
    devices = tuple(one for one in report.devices if one.device == name)
    without = tuple(one for one in report.without_memory if one.device == name)
    return TensorReport(devices, without, report.notes)


def _models(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if issubclass(type(given), torch.nn.Module):
        return {"": given}
    named = _named(given)
    if named is None or not all(issubclass(type(model), torch.nn.Module) for model in named.values()):
        raise BadRequest(f"{type(given).__name__} is not a model", "give a torch.nn.Module, or a dict or list of them")
    return named


def _named(given: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
    if isinstance(given, dict):
        return {str(name): model for name, model in given.items()}
    if isinstance(given, (list, tuple)):
        return {str(place): model for place, model in enumerate(given)}
    return None
