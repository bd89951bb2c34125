"""Walks autograd's graph to find the tensors saved for backward. The walk unpacks nothing and keeps nothing alive.

The node of an operation holds its saved tensors in C++, most without a Python object. Each node lists them as
`_raw_saved_*`. From torch 2.10, `SavedTensor.data` is the tensor, or the object into which a hook packed it, and no
hook runs. Before 2.10, only `_saved_*` shows a tensor, and it runs the unpack hook, which may compute a checkpoint
again. So there the walk needs `unpack=True`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hiwater.contrib.torch import heap
from hiwater.contrib.torch.storages import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_RAW, _UNPACKED = "_raw_saved_", "_saved_"
_DEEPEST_PACKED = 4  # containers within containers, in what a pack hook returned


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor (inside this module also an unpack hook) in `slot` of the node named `node`, which `number`
    identifies. `packed` says that a hook packed it."""

    tensor: Any
    node: str
    slot: str
    number: int
    packed: bool


def sees_without_unpacking() -> bool:
    """Whether this torch (2.10 or later) shows saved tensors without running hooks."""
    saved = getattr(torch._C._autograd, "SavedTensor", None)
    return hasattr(saved, "data")


def saved_tensors(
    roots: Iterable[Any], unpack: bool = False, hooks: dict[int, tuple[str, Any]] | None = None
) -> Iterator[Saved]:
    """The tensors that the graph above `roots` saves; each node is visited once. Roots that are None are skipped.

    The unpack hooks are added to `hooks` by identity, with a name: the graph also keeps what they hold, such as a
    checkpoint's inputs. `unpack` allows running hooks; only torch before 2.10 needs it. Without it, such a torch shows
    only the attributes of custom functions. The nodes live as long as the iterator.
    """
    seen: dict[int, Any] = {}
    waiting = [node for node in roots if node is not None]
    waiting.reverse()
    slots: dict[type, tuple[str, ...]] = {}
    prefix = _RAW if sees_without_unpacking() else _UNPACKED if unpack else None
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        for saved in _of_node(node, len(seen), prefix, slots):
            if is_tensor(saved.tensor):
                if heap.is_defined(saved.tensor):
                    yield saved
            elif hooks is not None and id(saved.tensor) not in hooks:
                hooks[id(saved.tensor)] = (f"{saved.node}.{saved.slot}", saved.tensor)
        waiting += [upper for upper, _ in node.next_functions if upper is not None]


def _of_node(node: Any, number: int, prefix: str | None, slots: dict[type, tuple[str, ...]]) -> Iterator[Saved]:
    kind = type(node)
    name = heap.name_of(kind)
    if kind not in slots:
        slots[kind] = _slots(kind, prefix)
    for slot in slots[kind]:
        try:
            value = getattr(node, slot)
        except Exception:  # noqa: BLE001, S112 - freed by backward; with `unpack`, also an error of the program's hook
            continue
        yield from _of_slot(value, name, slot.removeprefix(prefix or ""), number, packed=False)
    for attribute, value in (heap.attributes_of(node) or {}).items():  # the context of a custom Function
        yield from _of_packed(value, name, attribute, number, 0, packed=False)
    if name == "AccumulateGrad" and is_tensor(node.variable):
        yield Saved(node.variable, name, "variable", number, packed=False)


def _slots(kind: type, prefix: str | None) -> tuple[str, ...]:
    """The attributes of this node class that hold saved tensors. Computed once for each class: `dir()` is the main
    cost of the walk."""
    if prefix is None:
        return ()
    if issubclass(kind, torch._C._FunctionBase):
        return (prefix + "tensors" if prefix == _RAW else "saved_tensors",)
    return tuple(name for name in dir(kind) if name.startswith(prefix))


def _of_slot(value: Any, node: str, slot: str, number: int, packed: bool) -> Iterator[Saved]:
    if type(value) in {tuple, list}:
        for place, one in enumerate(value):
            yield from _of_slot(one, node, f"{slot}[{place}]", number, packed)
    elif is_tensor(value):
        yield Saved(value, node, slot, number, packed)
    elif type(value).__name__ == "SavedTensor":
        held = value.data
        if value.unpack_hook is not None:
            yield Saved(value.unpack_hook, node, slot, number, packed=True)
        if is_tensor(held):
            yield Saved(held, node, slot, number, packed or value.unpack_hook is not None)
        elif held is not None:
            yield from _of_packed(held, node, slot, number, 0, packed=True)


def _of_packed(value: Any, node: str, slot: str, number: int, depth: int, packed: bool) -> Iterator[Saved]:
    """The tensors in a hook's result or in an attribute. Only plain containers are searched: other objects are
    foreign code."""
    if is_tensor(value):
        yield Saved(value, node, slot, number, packed)
    elif depth < _DEEPEST_PACKED and type(value) in {tuple, list}:
        for place, one in enumerate(list(value)):
            yield from _of_packed(one, node, f"{slot}[{place}]", number, depth + 1, packed)
    elif depth < _DEEPEST_PACKED and type(value) is dict:
        for key, one in list(value.items()):
            label = f"[{key!r}]" if type(key) in {str, int} else "[…]"
            yield from _of_packed(one, node, slot + label, number, depth + 1, packed)
