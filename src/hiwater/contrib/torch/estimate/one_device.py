"""Makes code for a card run on fake tensors: there is only one device, cpu.

A fake `cuda` device would end the process on builds of torch without CUDA, so none is made. The changes to torch are
permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


def settle() -> None:
    """Ignore devices: moves only convert types, and autocast for a card becomes autocast for the CPU."""
    warnings.simplefilter(
        "ignore"
    )  # warnings of the step appear where it really runs; the others are about this process
    torch.set_default_device(None)
    torch.set_default_device = _nothing()
    torch.Tensor.to = _to
    torch.Tensor.cuda, torch.Tensor.pin_memory = _itself(), _itself()
    nn.Module._apply = _apply
    torch.compile, nn.Module.compile = _uncompiled, _nothing()
    # The last is called where a tensor is to be made on a card, before any mode can change that (seen with torch 2.2).
    for name in ("synchronize", "set_device", "empty_cache", "manual_seed", "manual_seed_all", "init", "_lazy_init"):
        setattr(torch.cuda, name, _nothing())
    if hasattr(torch.backends, "mha"):  # one operator for a whole encoder layer, which hides its allocations
        torch.backends.mha.set_fastpath_enabled(False)
    # torch 2.2 has no switch, and does without it where a tensor has functions of its own; only these layers ask by
    # this name
    else:
        torch.overrides.has_torch_function = lambda given: any(isinstance(one, torch.Tensor) for one in given)
    _settle_autocast()
    _settle_optimizers()


def _nothing() -> Callable[..., None]:
    """A new function that does nothing. It is new each time, because torch refuses to list a function twice."""
    return lambda *_arguments, **_options: None


def _itself() -> Callable[..., torch.Tensor]:
    return lambda tensor, *_arguments, **_options: tensor


def _uncompiled(model: Any = None, **_options: Any) -> Any:
    """A `torch.compile` that returns the model or function unchanged."""
    return model if model is not None else lambda function: function


_tensor_to = torch.Tensor.to


def _to(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """`Tensor.to` without its device. A tensor that has the type already is returned unchanged, as by torch."""
    given = [*arguments, options.get("other"), options.get("dtype")]
    dtype = next((value for value in given if isinstance(value, torch.dtype)), None)
    other = next((value for value in given if isinstance(value, torch.Tensor)), None)
    if other is not None:
        dtype = other.dtype
    kept = {name: options[name] for name in ("copy", "memory_format") if options.get(name) is not None}
    if dtype is None and not kept:
        return self
    return _tensor_to(self, dtype or self.dtype, **kept)


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
