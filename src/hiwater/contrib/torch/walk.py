"""What autograd keeps for backward: a walk over the graph that unpacks nothing and keeps nothing.

Tensors that an operation saved are held by its node in C++, most without a Python object. Each node lists them as `_raw_saved_*`, and from
torch 2.10 `SavedTensor.data` gives the tensor, or what a hook packed it into, without running the hook. Before that, only
`_saved_*` shows a tensor, and it runs the unpack hook: a checkpoint would be computed again. There the walk has to be asked for.
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
    """A tensor (or, between the functions here, an unpack hook) that the node named `node` keeps in `slot`; `number` tells nodes apart, `packed` says that a hook had it."""

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
    """All that the graph above `roots` (nodes; None is passed over) keeps, each node once. Into `hooks` go the unpack hooks that were
    met, by identity, with a name: what they hold for a computation to come (a checkpoint's inputs) is kept by the graph, too.

    `unpack` allows what runs hooks, and is looked at only by a torch before 2.10; without it such a torch shows only what custom
    functions put in attributes. Nodes live as long as the iterator.
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
        except Exception:  # noqa: BLE001, S112 - freed by backward; with `unpack` also whatever a hook of the program's raises
            continue
        yield from _of_slot(value, name, slot.removeprefix(prefix or ""), number, packed=False)
    for attribute, value in (heap.own_dict(node) or {}).items():  # what a custom Function put into its context
        yield from _of_packed(value, name, attribute, number, 0, packed=False)
    if name == "AccumulateGrad" and is_tensor(node.variable):
        yield Saved(node.variable, name, "variable", number, packed=False)


def _slots(kind: type, prefix: str | None) -> tuple[str, ...]:
    """The names under which nodes of this class show what they saved. Found once for a class: `dir()` is the cost of the walk."""
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
    """Tensors in what a hook packed, or in an attribute: plain containers only, as anything else is foreign."""
    if is_tensor(value):
        yield Saved(value, node, slot, number, packed)
    elif depth < _DEEPEST_PACKED and type(value) in {tuple, list}:
        for place, one in enumerate(list(value)):
            yield from _of_packed(one, node, f"{slot}[{place}]", number, depth + 1, packed)
    elif depth < _DEEPEST_PACKED and type(value) is dict:
        for key, one in list(value.items()):
            label = f"[{key!r}]" if type(key) in {str, int} else "[…]"
            yield from _of_packed(one, node, slot + label, number, depth + 1, packed)
