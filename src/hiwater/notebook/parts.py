"""Splits values into parts: their own memory, each part with a key, and the other objects that they hold.

The key of an object is its identity, that of a buffer the address of its storage. So an array, its views and a frame
over it share a part, and a string in a list and in a column is one object.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import chain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from typing import Any

_CONTAINERS = (list, tuple, set, frozenset, deque)
_NOT_A_VALUE = (type, type(sys), type(len), type(lambda: 0))  # the program's, not its data: classes, modules, functions
_COMPUTED_INDEXES = ("RangeIndex", "MultiIndex")  # of pandas: reading their values creates them
ATOMS = frozenset((int, float, complex, bool, type(None), str, bytes, bytearray, range))
"""Types whose objects hold no others."""


class Parts:
    """What one object consists of: its own `size`, `buffers` as (key, bytes), and `count` objects that it holds.
    `made` keeps temporary objects alive, so that their identities are not used again."""

    __slots__ = ("buffers", "count", "held", "made", "note", "size")

    def __init__(self, size: int, held: Iterable[object] = (), count: int = 0) -> None:
        self.size = size
        self.buffers: list[tuple[Hashable, int]] = []
        self.held = held
        self.count = count
        self.note = ""
        self.made: list[object] = []


class _Elements:
    """Objects that can be iterated more than once."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Iterator[object]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[object]:
        return self._begin()


def is_value(item: object) -> bool:
    """Whether an object is data, and not a part of the program."""
    return not isinstance(item, _NOT_A_VALUE)


def is_view(value: Any) -> bool:
    """Whether another object owns the storage of a value."""
    if _is_array(value):
        return _owner(value) is not value or value.base is not None
    return _is_tensor(value) and value._base is not None


def take_apart(item: Any) -> Parts:
    """The parts of one object. Foreign objects compute their sizes, and may raise anything."""
    for is_meant, take in _KNOWN:
        if is_meant(item):
            parts: Parts = take(item)
            return parts
    if isinstance(item, dict):
        return Parts(_size(item), _Elements(lambda: chain(item.keys(), item.values())), 2 * len(item))
    if isinstance(item, _CONTAINERS):
        return Parts(_size(item), item, len(item))
    held = getattr(item, "__dict__", None)
    return Parts(_size(item), (held,), 1) if type(held) is dict else Parts(_size(item))


def _array(array: Any) -> Parts:
    """A NumPy array: its storage, which may be that of bytes."""
    owner = _owner(array)
    base = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    if isinstance(base, (bytes, bytearray)):
        return Parts(0, (base,), 1)
    parts = Parts(0)
    parts.buffers.append((("buffer", owner.__array_interface__["data"][0]), int(owner.nbytes)))
    if array.dtype == object:
        parts.held, parts.count = _Elements(lambda: array.flat), array.size
    return parts


def _owner(array: Any) -> Any:
    while type(array.base).__module__ == "numpy" and hasattr(array.base, "nbytes"):
        array = array.base
    return array


def _frame(frame: Any) -> Parts:
    """A pandas frame, series or index: the storage of its columns, their strings and masks, and its index."""
    parts, held = Parts(0), list[object]()
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])] if frame.ndim == 2 else [frame]
    for column in columns:
        held += _values(column, parts)
    if hasattr(frame, "index"):
        held.append(frame.index)
    parts.held, parts.made = held, [*parts.made, held]
    return parts


def _values(column: Any, parts: Parts) -> list[object]:
    """The values of a series or an index, if they are arrays with visible storage or objects; otherwise only their
    size is added to `parts`."""
    values = column if type(column).__name__ in _COMPUTED_INDEXES else column.array
    array = getattr(values, "_ndarray", None)
    if array is not None:
        return [array, values.categories] if hasattr(values, "categories") else [array]
    without_index = {"index": False} if hasattr(column, "index") else {}
    parts.buffers.append((("values", id(values)), int(column.memory_usage(deep=True, **without_index))))
    parts.made.append(values)
    return []


def _tensor(tensor: Any) -> Parts:
    """A torch tensor: its storage, if that is in RAM."""
    parts = Parts(0)
    if tensor.device.type != "cpu":
        parts.note = f"on {tensor.device}, not in RAM"
    else:
        storage = tensor.untyped_storage()
        parts.buffers.append((("buffer", storage.data_ptr()), int(storage.nbytes())))
    return parts


def _size(item: object) -> int:
    try:
        return sys.getsizeof(item)
    except Exception:  # noqa: BLE001 - a class of the user's own may have broken it
        return 0


def _comes_from(package: str, *names: str) -> Callable[[object], bool]:
    """A test for objects of these classes. It imports nothing: a module that was never imported has no objects."""

    def is_meant(item: object) -> bool:
        module = sys.modules.get(package)
        classes = tuple(kind for name in names if isinstance(kind := getattr(module, name, None), type))
        return bool(classes) and isinstance(item, classes)

    return is_meant


_is_array = _comes_from("numpy", "ndarray")
_is_tensor = _comes_from("torch", "Tensor")
_KNOWN: tuple[tuple[Callable[[object], bool], Callable[[Any], Parts]], ...] = (
    (_is_array, _array),
    (_comes_from("pandas", "DataFrame", "Series", "Index"), _frame),
    (_is_tensor, _tensor),
)
