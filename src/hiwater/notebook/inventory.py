"""Which variables hold how much memory: sizes of values without copying them, and each object counted once.

Up to `MOST_PARTS` objects and buffers, all of them are counted. Beyond that, elements of large containers are sampled.
An element is selected by its own identity, so every container that holds it makes the same choice. Estimates have a
standard error. What C code holds beside its objects is not seen.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace

from hiwater.notebook.parts import ATOMS, Parts, is_value, is_view, take_apart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from typing import Any, TypeVar

    Result = TypeVar("Result")

MOST_PARTS = 1_000_000
_STEP = 8  # the sampling rate falls by this factor until no more than MOST_PARTS remain,
_LOWEST_RATE = 2.0**-18  # or to this: then figures are "at least"
_SMALL = 256  # elements: a container of fewer is not sampled
_DISTINCT = 65_536  # nor is one with fewer different elements than this, times the rate
# Of identities they make one even order, from which all rates select.
_MIX, _MASK, _HASHES = (0x9E3779B97F4A7C15, (1 << 64) - 1, 1 << 64)


@dataclass(frozen=True, slots=True)
class Variable:
    """`total_bytes` is all that the value holds, `own_bytes` what no variable that was counted before it holds as
    well. `note` names what it shares with whom. `standard_error_bytes` is that of `total_bytes`, 0 where nothing was
    sampled. `complete` is False where only part of the value was looked at, and the sizes are lower bounds."""

    name: str
    kind: str
    total_bytes: int
    own_bytes: int
    note: str
    complete: bool
    standard_error_bytes: int = 0


@dataclass(slots=True)
class Count:
    """What one value holds: in all, of its own, and together with values that were counted before it, by their
    names."""

    total: float = 0.0
    own: float = 0.0
    variance: float = 0.0
    shared: dict[str, float] = field(default_factory=dict)
    note: str = ""
    complete: bool = True

    def add(self, size: float, name: str, holder: str) -> None:
        """Add a part of the value `name` that `holder` is the first to hold."""
        self.total += size
        if holder is name:
            self.own += size
        else:
            self.shared[holder] = self.shared.get(holder, 0.0) + size

    def end_element(self, level: _Level) -> None:
        """An element of `level` is done: add the variance of a Horvitz-Thompson estimate."""
        self.variance += (1 - level.rate) * (self.total - level.counted) ** 2
        level.counted = self.total


class _TooManyError(Exception):
    """More parts than are to be kept."""


class _Level:
    """The elements of one object that are still to be looked at. Each stands for `weight` of its kind."""

    __slots__ = ("counted", "elements", "rate", "weight")

    def __init__(self, elements: Iterator[object], weight: float, rate: float, counted: float) -> None:
        self.elements = elements
        self.weight = weight
        self.rate = rate
        self.counted = counted  # of the value's total, when the element before was done


class Inventory:
    """Counts values one after another, and knows which of them was the first to hold what."""

    def __init__(self, rate: float, most: int, *, is_last: bool) -> None:
        """Sample elements of large containers at `rate`, and hold `most` parts: where there are more, the last
        attempt ignores them."""
        self.rate = rate
        self._most = most
        self._is_last = is_last
        self._holders: dict[Hashable, str] = {}
        self._made: list[object] = []

    def count(self, name: str, value: object) -> Count:
        """Count what a value holds; it is called `name`."""
        count = Count()
        try:
            self._walk(name, value, count)
        except _TooManyError:
            raise
        except Exception as error:  # noqa: BLE001 - sizes are asked of foreign objects, which may answer anything
            count.note, count.complete = f"could not be looked into: {type(error).__name__}", False
        return count

    def _walk(self, name: str, value: object, count: Count) -> None:
        again: set[Hashable] = set()  # what others hold, too: to be counted once in the total
        levels = [_Level(iter((value,)), 1.0, 1.0, 0.0)]
        while levels:
            level = levels[-1]
            for item in level.elements:
                if level.rate < 1:
                    count.end_element(level)
                is_atom = type(item) in ATOMS
                holder = self._holder(name, id(item), again) if is_atom or is_value(item) else None
                if holder is None:
                    continue
                if len(self._holders) + len(again) > self._most:
                    if not self._is_last:
                        raise _TooManyError
                    count.complete = False
                    return
                if is_atom:
                    count.add(sys.getsizeof(item) * level.weight, name, holder)
                else:
                    levels.append(self._take_apart(name, holder, item, level.weight, count, again))
                    break
            else:
                count.end_element(level)
                levels.pop()

    def _take_apart(
        self, name: str, holder: str, item: object, weight: float, count: Count, again: set[Hashable]
    ) -> _Level:
        """Add what an object holds itself; return the level of the objects that it holds."""
        parts = take_apart(item)
        self._made += parts.made
        count.note = count.note or parts.note
        count.add(parts.size * weight, name, holder)
        for key, size in parts.buffers:
            first = self._holder(name, key, again)
            if first is not None:
                count.add(size * weight, name, first)
        elements, rate = self._selected(parts)
        return _Level(iter(elements), weight / rate, rate, count.total)

    def _holder(self, name: str, key: Hashable, again: set[Hashable]) -> str | None:
        """The value that is the first to hold what has this key; None where it was counted for `name` already."""
        holder = self._holders.get(key)
        if holder is None:
            self._holders[key] = name
            return name
        if holder is name or key in again:
            return None
        again.add(key)
        return holder

    def _selected(self, parts: Parts) -> tuple[Iterable[object], float]:
        """The elements to look at, and the rate at which they were selected."""
        rate = max(self.rate, _SMALL / max(parts.count, 1))
        if rate >= 1:
            return parts.held, 1.0
        limit = int(_DISTINCT * self.rate)
        different: dict[int, object] = {}
        for element in parts.held:
            different[id(element)] = element
            if len(different) > limit:
                break
        else:
            return different.values(), 1.0
        return (one for one in parts.held if (id(one) * _MIX & _MASK) < rate * _HASHES), rate


def attempt(work: Callable[[Inventory], Result], most: int) -> Result:
    """Do `work` with an inventory of `most` parts, again at lower rates where that is not enough."""
    rate = 1.0
    while True:
        try:
            return work(Inventory(rate, most, is_last=rate <= _LOWEST_RATE))
        except _TooManyError:
            rate /= _STEP


def variables(names: Mapping[str, object], hidden: Iterable[str] = ()) -> list[Variable]:
    """The variables of a namespace, those that hold most of their own first. What several hold is counted for the
    first of them that is no view; so `own_bytes` sum up to what they hold together."""
    return _counted(names, hidden)[0]


def _counted(names: Mapping[str, object], hidden: Iterable[str]) -> tuple[list[Variable], float]:
    """The variables, and the rate at which elements of large containers were selected."""
    leave_out = {*hidden}
    values = [
        (name, value)
        for name, value in list(names.items())
        if not name.startswith("__") and name not in leave_out and is_value(value)
    ]
    values.sort(key=lambda one: _is_view(one[1]))  # the rest in the order in which they were made

    def work(inventory: Inventory) -> tuple[list[Variable], float]:
        found = [_variable(name, value, inventory.count(name, value)) for name, value in values]
        return sorted(found, key=lambda one: (-one.own_bytes, -one.total_bytes, one.name)), inventory.rate

    return attempt(work, MOST_PARTS)


def _is_view(value: object) -> bool:
    try:
        return is_view(value)
    except Exception:  # noqa: BLE001 - a foreign object may answer anything
        return False


def _variable(name: str, value: object, count: Count) -> Variable:
    note = count.note
    if count.shared:
        most = max(count.shared, key=lambda other: count.shared[other])
        is_part = _is_view(value) and count.own < count.shared[most]
        note = f"{'view of' if is_part else 'shares storage with'} {most}" if count.shared[most] else note
    elif _is_view(value):
        note = "view of storage without a name"
    error = math.ceil(math.sqrt(count.variance))
    return Variable(name, type(value).__name__, round(count.total), round(count.own), note, count.complete, error)


def of_session(shell: Any) -> str:
    """The variables of a notebook as a table, with the values of cells that IPython keeps beside them: in `Out`, and
    as `_11`."""
    outputs = {f"_{number}": value for number, value in shell.user_ns.get("_oh", {}).items()}
    found, rate = _counted({**shell.user_ns, **outputs}, {*shell.user_ns_hidden}.difference(outputs))
    return text([_as_output(one) if one.name in outputs and not one.note else one for one in found], rate)


def _as_output(one: Variable) -> Variable:
    return replace(one, note=f"the value of cell [{one.name[1:]}]: `%xdel {one.name}` lets go of it")


def text(found: list[Variable], rate: float, most: int = 15) -> str:
    """The largest as a table, with the sum of the rest."""
    from hiwater._os.sizes import format_size

    lines = [f"{'own':>10} {'in all':>10}  variable"]
    for one in found[:most]:
        least = "" if one.complete else "at least "
        error = f", ± {format_size(one.standard_error_bytes)}" if one.standard_error_bytes else ""
        note = f", {one.note}" if one.note else ""
        lines.append(
            f"{format_size(one.own_bytes):>10} {format_size(one.total_bytes):>10}  {one.name}"
            f" ({least}{one.kind}{error}{note})"
        )
    rest = sum(one.own_bytes for one in found[most:])
    if rest:
        lines.append(f"{format_size(rest):>10} {'':>10}  {len(found) - most} others")
    lines.append(f"{format_size(sum(one.own_bytes for one in found)):>10} {'':>10}  together, each object once")
    if rate < 1:
        lines.append(
            f"more than {MOST_PARTS:,} objects: one in {round(1 / rate):,} elements of large containers was counted; ±"
            " is the standard error"
        )
    return "\n".join(lines)
