"""Replaces real tensors by fake ones in a model, an optimizer and their arguments. No value is copied."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map


class Fakes:
    """Maps real tensors and storages to their fakes, so that tied tensors, views and optimizers keep their meaning."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._tensors: dict[int, torch.Tensor] = {}
        self._bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._kept: list[Any] = []  # keeps the real ones alive: their addresses identify them

    def of(self, value: Any) -> Any:
        """The value with all its real tensors replaced by fakes. Modules and optimizers are changed in place."""
        return tree_map(self._one, value)

    def _one(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            self._change_module(value)
            self.modules.append(value)
        elif isinstance(value, torch.optim.Optimizer):
            self._change_optimizer(value)
            self.optimizers.append(value)
        elif isinstance(value, torch.Tensor):
            return self._tensor(value)
        return value

    def change_what_it_uses(self, function: Any) -> None:
        """Replace the tensors that a function reaches through its closure, its globals, its object and its defaults."""
        inner = inspect.unwrap(getattr(function, "__func__", getattr(function, "func", function)))
        self._one(getattr(function, "__self__", None))
        code = getattr(inner, "__code__", None)
        if code is None:
            return
        for cell in inner.__closure__ or ():
            try:
                cell.cell_contents = self._with_keys(self.of(cell.cell_contents))
            except ValueError:  # not filled yet
                continue
        for name in code.co_names:
            if name in inner.__globals__:
                self.of(inner.__globals__[name])
                if isinstance(inner.__globals__[name], torch.Tensor):
                    inner.__globals__[name] = self._tensor(inner.__globals__[name])

    def _with_keys(self, value: Any) -> Any:
        if type(value) is dict and any(isinstance(key, torch.Tensor) for key in value):
            return {self._one(key): content for key, content in value.items()}
        return value

    def _tensor(self, real: torch.Tensor) -> torch.Tensor:
        if isinstance(real, FakeTensor):
            return real
        if id(real) not in self._tensors:
            self._kept.append(real)
            self._tensors[id(real)] = fake = self._made(real)
            self._carry_hooks(real, fake)
        return self._tensors[id(real)]

    def _made(self, real: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if real.layout == torch.strided:
                fake = self._base(real).as_strided(real.shape, real.stride(), real.storage_offset())
            else:
                fake = torch.empty(real.shape, dtype=real.dtype)
        if isinstance(real, nn.Parameter):
            made: torch.Tensor = nn.Parameter(fake, real.requires_grad)
        else:
            made = fake.requires_grad_(real.requires_grad)
        if real.is_leaf and real.grad is not None:
            made.grad = self._tensor(real.grad)
        return made

    def _carry_hooks(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        for names, register in (
            ("_backward_hooks", "register_hook"),
            ("_post_accumulate_grad_hooks", "register_post_accumulate_grad_hook"),
        ):
            for hook in (getattr(real, names, None) or {}).values():
                self.change_what_it_uses(hook)
                getattr(fake, register)(hook)

    def _base(self, real: torch.Tensor) -> torch.Tensor:
        storage = real.untyped_storage()
        key = (storage._cdata, real.dtype)
        if key not in self._bases:
            self._bases[key] = torch.empty(storage.nbytes() // real.element_size(), dtype=real.dtype)
        return self._bases[key]

    def _change_module(self, module: nn.Module) -> None:
        for part in module.modules():
            for names in (part._parameters, part._buffers):
                for name, tensor in names.items():
                    if tensor is not None:
                        names[name] = self._tensor(tensor)
            if isinstance(part, nn.RNNBase) and hasattr(part, "_init_flat_weights"):
                part._init_flat_weights()  # it has its own list of the weights

    def _change_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._tensor(parameter) for parameter in group["params"]]
        for parameter in list(optimizer.state):
            state = optimizer.state.pop(parameter)
            optimizer.state[self._tensor(parameter)] = self.of(state)
