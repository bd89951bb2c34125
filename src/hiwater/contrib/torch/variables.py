"""Finds the variable, attribute or container that leads to a tensor: a breadth-first search from the program's
variables.

The search follows only plain data, through the interpreter's own descriptors: dicts, lists, tuples, sets, attributes,
slots, closures, partials and suspended generators. It never calls a property, `__getattr__` or `repr` of a foreign
object.
"""

from __future__ import annotations

import collections
import functools
import types
from dataclasses import dataclass, field

import torch

from hiwater.contrib.torch import frames, heap, walk
from hiwater.contrib.torch.storages import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_DEEPEST = 7  # steps from a variable
_MOST_OBJECTS = 200_000
_LONGEST_KEY = 40
_MOST_NAMES = 4  # of one tensor
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_ATOMS = frozenset({
    int, float, complex, bool, type(None), str, bytes, bytearray, type, range, slice, type(Ellipsis), types.ModuleType,
    types.CodeType, types.BuiltinFunctionType, torch.dtype, torch.device, torch.Size,
})  # fmt: skip


@dataclass(slots=True)
class VariableSearch:
    """The names found so far by identity, the shortest path first. Those of modules are split into path and place (`
    in f()`)."""

    wanted: set[int]
    tensors: dict[int, list[str]] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)  # the tensors themselves
    modules: dict[int, tuple[str, str]] = field(default_factory=dict)
    holders: dict[int, Any] = field(default_factory=dict)  # modules and optimizers themselves
    complete: bool = True
    _seen: set[int] = field(default_factory=set)
    _kept: list[Any] = field(default_factory=list)  # so that no identity is used again during the search

    def follow(self, namespaces: Iterable[frames.Namespace]) -> None:
        """Search from these variables, breadth first."""
        waiting: collections.deque[tuple[Any, str, str, int]] = collections.deque()
        for namespace in namespaces:
            waiting += [
                (value, namespace.before + name, namespace.after, 0)
                for name, value in namespace.variables
                if not _is_dull(value)
            ]
        while waiting:
            item, path, after, depth = waiting.popleft()
            if self._has_named(item, path, after):
                continue
            if depth >= _DEEPEST or id(item) in self._seen:
                continue
            if len(self._seen) >= _MOST_OBJECTS:
                self.complete = False
                return
            self._seen.add(id(item))
            self._kept.append(item)
            waiting += [(inner, path + step, after, depth + 1) for step, inner in _held_by(item) if not _is_dull(inner)]

    def _has_named(self, item: Any, path: str, after: str) -> bool:
        """Note a name. True for a tensor or an optimizer: their contents are not searched."""
        if is_tensor(item):
            if not heap.is_defined(item):
                return True
            self.objects[id(item)] = item
            names = self.tensors.setdefault(id(item), [])
            if len(names) < _MOST_NAMES and path + after not in names:
                names.append(path + after)
            self.wanted.discard(id(item))
            return True
        bases = heap.bases_of(type(item))
        if torch.nn.Module in bases:
            self.modules.setdefault(id(item), (path, after))
            self.holders[id(item)] = item
        elif torch.optim.Optimizer in bases:
            self.holders[id(item)] = item
            return True
        return False


def _is_dull(item: Any) -> bool:
    """Whether the object cannot lead to a tensor: atoms, and functions without defaults or closure. Most objects
    are, so this comes early."""
    kind = type(item)
    if kind is types.FunctionType:
        return item.__closure__ is None and item.__defaults__ is None and item.__kwdefaults__ is None
    return kind in _ATOMS


def _held_by(item: Any) -> Iterator[tuple[str, Any]]:
    """The objects that `item` references, each with the text that follows the path."""
    kind = type(item)
    if issubclass(kind, dict):
        yield from ((f"[{_key(key)}]", value) for key, value in list(dict.items(item)))
    elif issubclass(kind, tuple):
        names = _field_names(kind)
        for place, value in enumerate(tuple.__iter__(item)):
            yield (f".{names[place]}" if place < len(names) else f"[{place}]"), value
    elif issubclass(kind, (list, collections.deque)):
        plain: Any = list if issubclass(kind, list) else collections.deque
        yield from ((f"[{place}]", value) for place, value in enumerate(list(plain.__iter__(item))))
    elif kind in {set, frozenset}:
        yield from (("{…}", value) for value in list(item))
    elif kind is types.FunctionType:
        yield from _held_by_function(item)
        return  # reading its attributes would create their dict
    elif kind is types.MethodType:
        yield ".__self__", item.__self__
    elif kind is types.CellType:
        yield from _held_by_cell(item)
    elif kind is functools.partial:
        yield from ((f"({place})", value) for place, value in enumerate(item.args))
        yield from ((f"({name}=)", value) for name, value in item.keywords.items())
        yield ".func", item.func
    elif kind is types.GeneratorType:
        yield from _held_by_frame(item.gi_frame)
    elif kind is types.CoroutineType:
        yield from _held_by_frame(item.cr_frame)
    elif kind is torch._C._autograd.SavedTensor and walk.sees_without_unpacking():
        yield "", item.data  # kept by Python code, as a checkpoint keeps its inputs
    yield from _attributes(item)


def _key(key: Any) -> str:
    if type(key) in {str, int, bool, float}:
        return repr(key)[:_LONGEST_KEY]
    if type(key) is tuple and all(type(part) in {str, int} for part in key):
        return repr(key)[:_LONGEST_KEY]
    return "…"


def _field_names(kind: type) -> tuple[str, ...]:
    """The field names of a named tuple."""
    names = heap.class_dict(kind).get("_fields") if kind is not tuple else None
    return names if type(names) is tuple and all(type(name) is str for name in names) else ()


def _held_by_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield from ((f".<closure>.{name}", value) for _, value in _held_by_cell(cell))
    yield from ((f"(default {place})", value) for place, value in enumerate(function.__defaults__ or ()))
    yield from ((f"({name}=)", value) for name, value in (function.__kwdefaults__ or {}).items())


def _held_by_cell(cell: types.CellType) -> Iterator[tuple[str, Any]]:
    try:
        yield "", cell.cell_contents
    except ValueError:
        return  # empty


def _held_by_frame(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    if frame is not None:
        yield from ((f".<locals>.{name}", value) for name, value in frames.variables_of(frame))


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    own = heap.attributes_of(item)
    if own is not None:
        for name, value in list(own.items()):
            if type(name) is not str or name.startswith("__"):
                continue  # Python's own attributes form circles
            if name in _MODULE_PARTS:
                # For their other attributes; parameters have names already.
                if name == "_modules" and type(value) is dict:
                    yield from ((f".{child}", module) for child, module in list(value.items()))
            else:
                yield f".{name}", value
    for base in heap.bases_of(type(item)):
        own_names = heap.class_dict(base)
        if "__slots__" not in own_names:
            continue
        for name, descriptor in own_names.items():
            if type(descriptor) is types.MemberDescriptorType:
                try:
                    yield f".{name}", descriptor.__get__(item)
                except AttributeError:
                    continue  # not set
