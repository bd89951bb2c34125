"""Which variables hold how much memory: sizes of values without copying them, shared storage counted once.

A value is taken apart into *parts*, each with a key: objects by their identity, buffers by the address of their storage, so
that an array, its views and a frame over it have one part in common. Estimates: what C code holds beside its objects is not seen.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_MOST_OBJECTS = 200_000  # looked at in one value: then its figure is "at least"
_ATOMS = (int, float, complex, bool, type(None), str, bytes, bytearray, range)
_CONTAINERS = (list, tuple, set, frozenset)
_NOT_A_VALUE = (
    type,
    type(sys),
    type(len),
    type(lambda: 0),
)  # classes, modules and functions: the program's, not its data


@dataclass(frozen=True, slots=True)
class Variable:
    """`total_bytes` is all that the value holds, `own_bytes` what no variable listed before it holds as well. `note` names what it
    shares with whom. `complete` is False where only part of it was looked at, and the sizes are lower bounds."""

    name: str
    kind: str
    total_bytes: int
    own_bytes: int
    note: str
    complete: bool


class Parts:
    """What one value consists of: bytes by key."""

    def __init__(self) -> None:
        self.sizes: dict[object, int] = {}
        self.is_view = False
        self.note = ""
        self.complete = True
        self._kept: list[object] = []  # what was made on the way: its identity must not be given to another meanwhile

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())

    def take(self, value: object) -> None:
        """Add a value and all that it holds."""
        waiting = [value]
        while waiting:
            if len(self.sizes) > _MOST_OBJECTS:
                self.complete = False
                return
            item = waiting.pop()
            if id(item) in self.sizes or isinstance(item, _NOT_A_VALUE):
                continue
            self._kept.append(item)
            waiting += self._one(item)

    def _one(self, item: Any) -> Iterable[object]:
        """Add one object; return those that it holds."""
        if isinstance(item, _ATOMS):
            self.sizes[id(item)] = sys.getsizeof(item)
            return ()
        for is_meant, take in _KNOWN:
            if is_meant(item):
                self.sizes[id(item)] = 0  # seen; its storage has a part of its own
                held_by_it: Iterable[object] = take(self, item)
                return held_by_it
        self.sizes[id(item)] = _size(item)
        if isinstance(item, dict):
            return [*item.keys(), *item.values()]
        if isinstance(item, _CONTAINERS):
            return item
        held = getattr(item, "__dict__", None)
        return [held] if type(held) is dict else ()

    def array(self, array: Any) -> Iterable[object]:
        """A NumPy array: the storage it looks at."""
        owner = array
        while type(owner.base).__module__ == "numpy" and hasattr(owner.base, "nbytes"):
            owner = owner.base
        self.is_view = self.is_view or owner is not array or owner.base is not None
        self.sizes["buffer", owner.__array_interface__["data"][0]] = int(owner.nbytes)
        return list(array.flat) if array.dtype == object and array.size <= _MOST_OBJECTS else ()

    def frame(self, frame: Any) -> Iterable[object]:
        """A pandas frame, series or index: its columns' storage, and what lies beside that (strings, masks)."""
        columns = [frame.iloc[:, place] for place in range(frame.shape[1])] if frame.ndim == 2 else [frame]
        for column in columns:
            values = column.array
            held = values.to_numpy(copy=False) if _is_plain(column.dtype) else None
            if held is not None and held.dtype != object:
                self.array(held)
            else:
                self.sizes["column", id(values)] = (
                    int(column.memory_usage(index=False, deep=True))
                    if frame.ndim == 2 or hasattr(frame, "index")
                    else int(column.memory_usage(deep=True))
                )
                self._kept.append(values)
        if hasattr(frame, "index"):
            self.sizes["index", id(frame.index)] = int(frame.index.memory_usage(deep=True))
        self.is_view = False  # a frame's columns are views of its own blocks
        return ()

    def tensor(self, tensor: Any) -> Iterable[object]:
        """A torch tensor: its storage, where that is in RAM."""
        if tensor.device.type != "cpu":
            self.note = f"on {tensor.device}, not in RAM"
            return ()
        storage = tensor.untyped_storage()
        self.sizes["buffer", storage.data_ptr()] = int(storage.nbytes())
        self.is_view = self.is_view or tensor._base is not None
        return ()


def variables(names: Mapping[str, object], hidden: Iterable[str] = ()) -> list[Variable]:
    """The variables of a namespace, those that hold most first. Where several hold the same storage, it is counted for the
    first that is no view; so `own_bytes` sum up to what they hold together."""
    leave_out = {*hidden}
    taken = []
    for name, value in list(names.items()):
        if name.startswith("__") or name in leave_out or isinstance(value, _NOT_A_VALUE):
            continue
        parts = Parts()
        try:
            parts.take(value)
        except Exception as error:  # noqa: BLE001 - sizes are asked of foreign objects, which may answer anything
            parts.note, parts.complete = f"could not be looked into: {type(error).__name__}", False
        taken.append((name, type(value).__name__, parts))
    taken.sort(key=lambda item: (-item[2].total_bytes, item[2].is_view, item[0].startswith("_")))
    holder: dict[object, str] = {}
    found = []
    for name, kind, parts in sorted(taken, key=lambda item: item[2].is_view):
        found.append(_counted(name, kind, parts, holder))
    return sorted(found, key=lambda one: (-one.own_bytes, -one.total_bytes, one.name))


def of_session(shell: Any) -> list[Variable]:
    """The variables of a notebook, and the values of cells that IPython keeps beside them: in `Out`, and as `_11`."""
    outputs = {f"_{number}": value for number, value in shell.user_ns.get("_oh", {}).items()}
    found = variables({**shell.user_ns, **outputs}, {*shell.user_ns_hidden}.difference(outputs))
    return [_as_output(one) if one.name in outputs and not one.note else one for one in found]


def _as_output(one: Variable) -> Variable:
    return replace(one, note=f"the value of cell [{one.name[1:]}]: `%xdel {one.name}` lets go of it")


def _counted(name: str, kind: str, parts: Parts, holder: dict[object, str]) -> Variable:
    shared: dict[str, int] = {}
    own = 0
    for key, size in parts.sizes.items():
        other = holder.setdefault(key, name)
        if other == name:
            own += size
        elif size:
            shared[other] = shared.get(other, 0) + size
    note = parts.note
    if shared:
        most = max(shared, key=lambda other: shared[other])
        note = f"{'view of' if parts.is_view and own < shared[most] else 'shares storage with'} {most}"
    elif parts.is_view:
        note = "view of storage without a name"
    return Variable(name, kind, parts.total_bytes, own, note, parts.complete)


def text(found: list[Variable], most: int = 15) -> str:
    """The largest as a table, with the sum of the rest."""
    from hiwater._os.sizes import format_size

    lines = [f"{'own':>10} {'in all':>10}  variable"]
    for one in found[:most]:
        least = "" if one.complete else "at least "
        note = f", {one.note}" if one.note else ""
        lines.append(
            f"{format_size(one.own_bytes):>10} {format_size(one.total_bytes):>10}  {one.name} ({least}{one.kind}{note})"
        )
    rest = sum(one.own_bytes for one in found[most:])
    if rest:
        lines.append(f"{format_size(rest):>10} {'':>10}  {len(found) - most} others")
    lines.append(f"{format_size(sum(one.own_bytes for one in found)):>10} {'':>10}  together, shared storage once")
    return "\n".join(lines)


def _size(item: object) -> int:
    try:
        return sys.getsizeof(item)
    except Exception:  # noqa: BLE001 - a class of the user's own may have broken it
        return 0


def _is_plain(dtype: object) -> bool:
    """Whether a column's values are one NumPy array."""
    return type(dtype).__module__.partition(".")[0] == "numpy"


def _comes_from(package: str, *names: str) -> Any:
    """A test for objects of these classes, which loads nothing: what was never imported has no objects."""

    def is_meant(item: object) -> bool:
        module = sys.modules.get(package)
        classes = tuple(kind for name in names if isinstance(kind := getattr(module, name, None), type))
        return bool(classes) and isinstance(item, classes)

    return is_meant


_KNOWN: tuple[tuple[Any, Any], ...] = (
    (_comes_from("numpy", "ndarray"), Parts.array),
    (_comes_from("pandas", "DataFrame", "Series", "Index"), Parts.frame),
    (_comes_from("torch", "Tensor"), Parts.tensor),
)
