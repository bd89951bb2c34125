"""Replaces real tensors by fake ones in a model, an optimizer and their arguments. No value is copied."""

from __future__ import annotations

import contextlib
import functools
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader, Dataset

from hiwater.contrib.torch.estimate import arrivals
from hiwater.contrib.torch.estimate.trace import LIBRARIES

_NOT_WALKED = (type, ModuleType, str, bytes, int, float, Dataset, DataLoader)  # data stay on the host
_OF_MODULES = ("_parameters", "_buffers", "_modules")


class Fakes:
    """Maps real tensors and storages to their fakes, so that tied tensors, views and optimizers keep their meaning.

    It walks what the parts of a step reach: containers, attributes, partial functions, methods, and the closures,
    globals and defaults of functions. What libraries have as globals is not the step's.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._modules: list[nn.Module] = []
        self._seen: dict[int, Any] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._kept: list[Any] = []  # keeps the real ones alive: their addresses identify them

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that were reached, without those that are parts of others."""
        parts = {id(part) for module in self._modules for part in module.modules() if part is not module}
        return [module for module in self._modules if id(module) not in parts]

    def of(self, value: Any) -> Any:
        """The value with fakes for its real tensors. What can be changed is changed in place."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(self._tensor(value))
            return self.tensors[-1]
        if isinstance(value, (tuple, list, dict)):
            return self._container(value)
        if isinstance(value, _NOT_WALKED) or id(value) in self._seen or _is_of_groups(value):
            return value
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            self._modules.append(value)
            self._change_module(value)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
            self._change_optimizer(value)
        elif isinstance(value, FunctionType):
            self._change_function(value)
        elif isinstance(value, MethodType):
            self.of(value.__func__)
            self.of(value.__self__)
        elif isinstance(value, functools.partial):
            setstate = value.__setstate__  # type: ignore[attr-defined]  # the only way to change one
            setstate((self.of(value.func), self.of(value.args), self.of(value.keywords), vars(value)))
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._container(vars(value))
        return value

    def _container(self, value: Any) -> Any:
        if isinstance(value, tuple):
            made = [self.of(one) for one in value]
            is_same = all(new is old for new, old in zip(made, value, strict=True))
            return value if is_same else type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if id(value) in self._seen:
            return value
        self._seen[id(value)] = value
        if isinstance(value, list):
            for place, one in enumerate(value):
                value[place] = self.of(one)
        else:
            for key, one in [(key, one) for key, one in value.items() if not isinstance(key, torch.Tensor)]:
                value[key] = self.of(one)
            for key in [key for key in value if isinstance(key, torch.Tensor)]:
                value[self._tensor(key)] = self.of(value.pop(key))
        return value

    def _change_function(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not filled yet
                cell.cell_contents = self.of(cell.cell_contents)
        function.__defaults__ = self.of(function.__defaults__)
        function.__kwdefaults__ = self.of(function.__kwdefaults__)
        self._container(vars(function))
        if not function.__code__.co_filename.startswith(LIBRARIES):
            for name in _names(function.__code__) & function.__globals__.keys():
                function.__globals__[name] = self.of(function.__globals__[name])

    def _tensor(self, real: torch.Tensor) -> torch.Tensor:
        if all(isinstance(part, FakeTensor) for part in arrivals.parts(real)):
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
                self.of(hook)
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
            for name, value in list(vars(part).items()):
                if isinstance(value, (torch.Tensor, list, tuple, dict)) and name not in _OF_MODULES:
                    vars(part)[name] = self.of(value)  # what is kept from torch's registers, such as a list of modules
            has_own = isinstance(part, nn.RNNBase) and hasattr(part, "_init_flat_weights")
            if has_own and not arrivals.are_noted(part._flat_weights):
                part._init_flat_weights()  # it has its own list of the weights; on the card it was made already

    def _change_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._tensor(parameter) for parameter in group["params"]]
        for parameter in list(optimizer.state):
            state = optimizer.state.pop(parameter)
            optimizer.state[self._tensor(parameter)] = self.of(state)


def _is_of_groups(value: Any) -> bool:
    """Whether it is torch's account of processes and shards, whose tables stay on the host."""
    is_torchs = type(value).__module__.startswith(("torch.distributed.", "torch._C._distributed"))
    return is_torchs and not isinstance(value, nn.Module)


def _names(code: CodeType) -> set[str]:
    """The names that this code and the functions in it use."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
