"""Makes code for a card run on fake tensors: there is only one device, cpu.

A fake `cuda` device would end the process on builds of torch without CUDA, so none is made. The changes to torch are
permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch

from hiwater.contrib.torch.estimate import arrivals, streams, unseen


def settle() -> None:
    """Ignore devices: moves only convert types, and autocast for a card becomes autocast for the CPU."""
    # Warnings of the step appear where it really runs; the others are about this process.
    warnings.simplefilter("ignore")
    torch.set_default_device(None)
    torch.set_default_device = _nothing()
    torch.Tensor.to = _to
    torch.Tensor.__deepcopy__ = _deepcopy
    torch.Tensor.__format__, torch.Tensor.numpy = _format, _numpy
    torch.Tensor.cuda, torch.Tensor.pin_memory = _cuda, _itself()
    nn.Module._apply, nn.Module.to = _apply, _module_to
    torch.UntypedStorage.resize_ = arrivals.resize
    functional.linear = _linear
    streams.install()
    torch.compile, nn.Module.compile = _uncompiled, lambda *_, **__: unseen.note_compiled(_AS_WRITTEN)
    torch.save = _nothing()  # it would begin to write a file, and fail
    torch.jit.script = lambda code, *_, **__: code  # it reads the source of functions that are replaced here
    # The last is called where a tensor is to be made on a card, before any mode can change that.
    for name in ("synchronize", "set_device", "empty_cache", "manual_seed", "manual_seed_all", "init", "_lazy_init"):
        setattr(torch.cuda, name, _nothing())
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole encoder layer hides its allocations
    nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor  # some versions repeat it until the values fit
    _settle_autocast()
    _settle_optimizers()


class Importing(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped where types are checked
    """While a script is imported, before any fake: what it makes on the card at once is on the only device."""

    def __torch_function__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type not in arrivals.HOST:
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Numbered(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped where types are checked
    """While a script is imported or a step is built: a device that is a number is a card, which torch without CUDA
    refuses."""

    def __torch_function__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.device and args and isinstance(args[0], int):
            return torch.device("cuda", args[0])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return function(*args, **kwargs)


def settle_libraries() -> None:
    """Let libraries that were imported since treat fake tensors as plain ones: transformers makes masks for them that
    it leaves out for others."""
    library = sys.modules.get("transformers.utils.import_utils")
    if library is not None:
        library.is_fake_tensor = lambda _: False  # type: ignore[attr-defined]


def _nothing() -> Callable[..., None]:
    """A new function that does nothing. It is new each time, because torch refuses to list a function twice."""
    return lambda *_arguments, **_options: None


def _itself() -> Callable[..., torch.Tensor]:
    return lambda tensor, *_arguments, **_options: tensor


_AS_WRITTEN = "estimated as it is written, without inductor's own buffers"


def _uncompiled(model: Any = None, **_options: Any) -> Any:
    """A `torch.compile` that returns the model or function unchanged."""
    unseen.note_compiled(_AS_WRITTEN)
    return model if model is not None else lambda function: function


_torch_linear = functional.linear
_running_linear: list[None] = []


def is_linear_running() -> bool:
    return bool(_running_linear)


def _linear(*arguments: Any, **options: Any) -> torch.Tensor:
    """`linear`, and a note that it runs: it adds a bias in place, but not to fake tensors (Linear.cpp in ATen)."""
    _running_linear.append(None)
    try:
        return _torch_linear(*arguments, **options)
    finally:
        _running_linear.pop()


def _cuda(self: torch.Tensor, *_arguments: Any, **_options: Any) -> torch.Tensor:
    self = arrivals.taken(self)
    arrivals.note(self)
    return self


_tensor_to = torch.Tensor.to


def _to(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """`Tensor.to` without its device. A tensor that has the type already is returned unchanged, as by torch."""
    self = arrivals.taken(self)
    given = [*arguments, *(options.get(name) for name in ("other", "dtype", "device"))]
    dtype = next((value for value in given if isinstance(value, torch.dtype)), None)
    other = next((value for value in given if isinstance(value, torch.Tensor)), None)
    device = next((value for value in map(_device, given) if isinstance(value, (str, torch.device))), "cpu")
    if other is not None:
        dtype = other.dtype
    kept = {name: options[name] for name in ("copy", "memory_format") if options.get(name) is not None}
    moved = self if dtype is None and not kept else _tensor_to(self, dtype or self.dtype, **kept)
    if torch.device(device).type not in arrivals.HOST or (other is not None and arrivals.are_noted(other)):
        arrivals.note(moved)
    return moved


def _device(value: Any) -> Any:
    """A device of a program; a bare number is a card's."""
    return f"cuda:{value}" if isinstance(value, int) and not isinstance(value, bool) else value


_module_moved = nn.Module.to


def _module_to(self: nn.Module, *arguments: Any, **options: Any) -> nn.Module:
    """`Module.to`, which asks torch for the kind of card if it is given a number."""
    options = {name: _device(value) if name == "device" else value for name, value in options.items()}
    moved: nn.Module = _module_moved(self, *map(_device, arguments), **options)
    return moved


_tensor_format = torch.Tensor.__format__


def _format(self: torch.Tensor, specification: str) -> str:
    """The text of a number, also of a fake tensor: torch has one for plain tensors only."""
    if specification and self.dim() == 0:
        return format(self.item(), specification)
    text: str = _tensor_format(self, specification)
    return text


_tensor_numpy = torch.Tensor.numpy


def _numpy(self: torch.Tensor, **options: Any) -> Any:
    """A single number is one that can be read."""
    if isinstance(self, FakeTensor) and self.numel() == 1:
        number = self.item()
        with no_dispatch():
            self = torch.full(self.shape, number, dtype=self.dtype)
    return _tensor_numpy(self, **options)


_tensor_deepcopy = torch.Tensor.__deepcopy__


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy with a storage of its own. torch gives a copy of a fake tensor a storage that its views do not share."""
    if not isinstance(self, FakeTensor):
        return _tensor_deepcopy(self, memo)
    if id(self) not in memo:
        with torch.no_grad():
            memo[id(self)] = made = self.clone()
        vars(made).update({name: value for name, value in vars(self).items() if name not in vars(made)})
        made.requires_grad_(self.requires_grad)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
    found: torch.Tensor = memo[id(self)]
    return found


def _apply(self: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """`Module._apply` on fake parameters. They cannot be swapped: each stays the same object and gets new data."""
    for child in self.children() if recurse else ():
        child._apply(function)
    for parameter in self._parameters.values():
        for tensor in (parameter, None if parameter is None else parameter.grad):
            if tensor is not None:
                with torch.no_grad():
                    changed = function(tensor)
                if changed is not tensor:
                    tensor.data = changed
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = function(buffer)
    return self


def _settle_autocast() -> None:
    original = torch.autocast.__init__

    def initialise(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type != "cpu":
            dtype = dtype or torch.float16
        original(self, "cpu", dtype, enabled, cache_enabled)

    torch.autocast.__init__ = initialise


def _settle_optimizers() -> None:
    """Let fake tensors pass the checks with which optimizers and gradient clipping select plain tensors for their
    combined kernels."""
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        home = importlib.import_module(name)  # torch.optim deletes its name for the first
        types = getattr(home, "_foreach_supported_types", None)
        if types is not None and FakeTensor not in types:
            types.append(FakeTensor)
