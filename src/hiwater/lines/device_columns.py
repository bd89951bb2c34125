"""The columns of a device's line profile, by name: the library's statistics, their increments, and figures of host
memory."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from hiwater.errors import UnknownStatistic
from hiwater.meters.devices.statistics import is_total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hiwater.lines.device_recorder import DeviceFigure
    from hiwater.lines.figures import LineFigures

    Value = int | str | None
    Row = tuple[DeviceFigure | None, LineFigures | None]

_CHIEF = ("allocated_bytes.all", "allocated")
"""The statistic of `increment` and `peak_above_start`: the first of these that the device's library has."""
_GREW, _ABOVE = "increment", "peak_above_start"
_PLAIN = ("hits", "device", _GREW, _ABOVE)
_OF_RAM = {
    "ram.kept": "kept_bytes",
    "ram.allocated": "allocated_bytes",
    "ram.peak_above_start": "peak_bytes",
    "ram.resident": "resident_bytes",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, whether it is bytes, and how to read it from a line."""

    name: str
    read: Callable[[Row], Value]
    is_bytes: bool = field(kw_only=True)
    needs_device: bool = field(kw_only=True)


def statistics_of(figures: Iterable[DeviceFigure]) -> set[str]:
    """The names of all statistics that were read."""
    found: set[str] = set()
    for figure in figures:
        found.update(figure.ends)
        found.update(figure.changes)
        found.update(f"{base}.peak" for base in figure.peaks)
    return found


def columns_of(names: Sequence[str], known: set[str], why_without_ram: str) -> list[Column]:
    """The columns of these names. `known` are the statistics that were read; `why_without_ram` is empty if host memory
    was measured.

    Raises UnknownStatistic, with similar names. If no statistic was read, every name of one is accepted.
    """
    return [_column(name, known, why_without_ram) for name in names]


def _column(name: str, known: set[str], why_without_ram: str) -> Column:
    if name in _OF_RAM:
        if why_without_ram:
            raise UnknownStatistic(f"{name} was not measured: {why_without_ram}", "make the profiler with ram=True")
        attribute = _OF_RAM[name]
        return Column(name, lambda row: getattr(row[1], attribute, None), is_bytes=True, needs_device=False)
    if name == "hits":
        return Column(name, lambda row: row[0].hits if row[0] else None, is_bytes=False, needs_device=False)
    if name == "device":
        return Column(name, _devices, is_bytes=False, needs_device=False)
    base, _, last = name.rpartition(".")
    if last in (_GREW, _ABOVE):
        base = base or next((chief for chief in _CHIEF if f"{chief}.current" in known), _CHIEF[0])
        _check(f"{base}.current", name, known)
        name_read = base if last == _ABOVE else f"{base}.current"
        return Column(name, _reader(name_read, last), is_bytes=_is_bytes(base), needs_device=True)
    _check(name, name, known)
    return Column(name, _reader(name, last), is_bytes=_is_bytes(name), needs_device=True)


def _devices(row: Row) -> str | None:
    return " ".join(each.name for each in row[0].devices) if row[0] else None


def _reader(name: str, last: str) -> Callable[[Row], Value]:
    """Reads peaks and levels as the highest of all calls, running totals as the sum over all calls."""
    if last == _ABOVE:
        return lambda row: row[0].above.get(name) if row[0] else None
    if last == _GREW:
        return lambda row: row[0].changes.get(name) if row[0] else None
    base = name.rpartition(".")[0]
    if last == "peak":
        return lambda row: row[0].peaks.get(base, 0) if row[0] else None
    if is_total(name):
        return lambda row: row[0].changes.get(name) if row[0] else None
    return lambda row: row[0].ends.get(name, 0) if row[0] else None


def _is_bytes(name: str) -> bool:
    return (
        "byte" in name
        or name in _CHIEF
        or (name.partition(".")[0] in ("allocated", "reserved", "used") and name.count(".") == 1)
    )


def _check(needed: str, requested: str, known: set[str]) -> None:
    if not known or needed in known:
        return
    ours = {*_PLAIN, *_OF_RAM}
    bases = [name.removesuffix(".current") for name in known if name.endswith(".current")]
    derived = {f"{base}.{kind}" for base in bases for kind in (_GREW, _ABOVE)}
    near = difflib.get_close_matches(requested, [*sorted(known), *sorted(derived), *sorted(ours)], n=4, cutoff=0.5)
    raise UnknownStatistic(
        f"the device has no statistic {requested!r}",
        f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(sorted(known | ours))}",
    )
