"""Names of parameters, buffers, gradients and the state of optimizers.

They are read from the dicts of modules and optimizers, not through `named_parameters()` or `state_dict()`: classes
override these, and they may gather, copy or call hooks.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.contrib.torch import heap
from hiwater.contrib.torch.records import Category
from hiwater.contrib.torch.storages import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_DEEPEST_STATE = 4
_IS_LEAF, _RETAINS_GRAD, _GRAD = (heap.torch_attribute(name) for name in ("is_leaf", "retains_grad", "grad"))


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor and the name that its holder gives it."""

    name: str
    category: Category
    tensor: Any


def of_module(module: Any, prefix: str) -> Iterator[Held]:
    """Parameters and buffers of `module` and its submodules. Each module is visited once, outer ones first."""
    seen: set[int] = set()
    waiting = [(module, prefix)]
    while waiting:
        one, before = waiting.pop(0)
        own = heap.attributes_of(one)
        if own is None or id(one) in seen:
            continue
        seen.add(id(one))
        for part, category in (("_parameters", Category.parameter), ("_buffers", Category.buffer)):
            for name, tensor in _items(own.get(part)):
                if is_tensor(tensor) and heap.is_defined(tensor):
                    yield Held(_joined(before, name), category, tensor)
        waiting[:0] = [
            (child, _joined(before, name)) for name, child in _items(own.get("_modules")) if child is not None
        ]


def roots_of(modules: Iterable[Any]) -> list[Any]:
    """The modules that are not a child of another one."""
    every = list(modules)
    children = {id(child) for one in every for _, child in _items((heap.attributes_of(one) or {}).get("_modules"))}
    return [one for one in every if id(one) not in children]


def of_optimizer(optimizer: Any, prefix: str, parameter_names: Mapping[int, str]) -> Iterator[Held]:
    """The state that an optimizer keeps for each parameter (momentum, moments, steps), and the tensors among its
    options."""
    own = heap.attributes_of(optimizer) or {}
    for place, (key, state) in enumerate(_items(own.get("state"))):
        name = parameter_names.get(id(key), f"parameter {place}")
        owner = without_place(name) if is_tensor(key) else key if type(key) is str else "state"
        yield from _in_state(state, f"{prefix}.{owner}", 0)
    groups = own.get("param_groups")
    for place, group in enumerate(groups if type(groups) is list else ()):
        options = [(name, value) for name, value in _items(group) if name != "params"]
        for name, value in options:
            yield from _in_state(value, f"{prefix}.param_groups[{place}].{name}", 0)


def _in_state(value: Any, name: str, depth: int) -> Iterator[Held]:
    if is_tensor(value):
        if heap.is_defined(value):
            yield Held(name, Category.optimizer, value)
    elif depth < _DEEPEST_STATE and issubclass(type(value), dict):
        for key, one in _items(value):
            step = f".{key}" if type(key) is str else f"[{key}]" if type(key) is int else "[…]"
            yield from _in_state(one, name + step, depth + 1)
    elif depth < _DEEPEST_STATE and type(value) in {list, tuple}:
        for place, one in enumerate(list(value)):
            yield from _in_state(one, f"{name}[{place}]", depth + 1)


def gradients_of(tensors: Iterable[Any], names: Mapping[int, str]) -> Iterator[Held]:
    """`.grad` of each tensor that may have one. Backward makes them in C++, so Python may not have an object for
    them yet."""
    for tensor in tensors:
        if not _IS_LEAF(tensor) and not _RETAINS_GRAD(tensor):
            continue  # reading `.grad` of those would warn
        gradient = _GRAD(tensor)
        if gradient is not None:
            name = names.get(id(tensor), heap.name_of(type(tensor)))
            bare = without_place(name)
            yield Held(f"{bare}.grad{name[len(bare) :]}", Category.gradient, gradient)


def without_place(name: str) -> str:
    """The name without its place: `model.0.weight` for `model.0.weight in main()`."""
    return name.partition(" in ")[0]


def _items(mapping: Any) -> list[tuple[Any, Any]]:
    return list(dict.items(mapping)) if issubclass(type(mapping), dict) else []


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
