"""What of a line's device figures can be asked for by name: the library's own statistics, what they grew by, and figures of RAM beside."""

from __future__ import annotations

import difflib

from hiwater.errors import UnknownStatistic
from hiwater.meters.devices.totals import is_total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hiwater.lines.device_recorder import DeviceFigure
    from hiwater.lines.figures import LineFigures

    Value = int | str | None
    Row = tuple[DeviceFigure | None, LineFigures | None]

_CHIEF = ("allocated_bytes.all", "allocated")
"""What `increment` and `peak_above_start` are of: the first that the device's library has."""
_GREW, _ABOVE = "increment", "peak_above_start"
_PLAIN = ("hits", "device", _GREW, _ABOVE)
_OF_RAM = {
    "ram.kept": "kept_bytes",
    "ram.allocated": "allocated_bytes",
    "ram.peak_above_start": "peak_bytes",
    "ram.resident": "resident_bytes",
}


class Column:
    """One column: its name, whether it is bytes, and how to read it from a line."""

    __slots__ = ("is_bytes", "name", "needs_device", "read")

    def __init__(self, name: str, read: Callable[[Row], Value], *, is_bytes: bool, needs_device: bool) -> None:
        self.name = name
        self.read = read
        self.is_bytes = is_bytes
        self.needs_device = needs_device


def statistics_of(figures: Iterable[DeviceFigure]) -> set[str]:
    """The names of all statistics that were read."""
    found: set[str] = set()
    for figure in figures:
        found.update(figure.ends)
        found.update(figure.changes)
        found.update(f"{base}.peak" for base in figure.peaks)
    return found


def columns_of(names: Sequence[str], known: set[str], why_without_ram: str) -> list[Column]:
    """The columns of these names; `known` are the statistics that were read, `why_without_ram` is empty where RAM was measured.

    Raises UnknownStatistic, with names that are near. Where nothing was read of the device any name of it will do.
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
        return Column(
            name,
            lambda row: " ".join(each.name for each in row[0].devices) if row[0] else None,
            is_bytes=False,
            needs_device=False,
        )
    base, _, last = name.rpartition(".")
    if last in (_GREW, _ABOVE):
        base = base or next((chief for chief in _CHIEF if f"{chief}.current" in known), _CHIEF[0])
        _check(f"{base}.current", name, known)
        return Column(name, _reader_of_ours(base, last), is_bytes=_is_bytes(base), needs_device=True)
    _check(name, name, known)
    return Column(name, _reader(name), is_bytes=_is_bytes(name), needs_device=True)


def _reader_of_ours(base: str, last: str) -> Callable[[Row], Value]:
    if last == _GREW:
        return lambda row: row[0].changes.get(f"{base}.current") if row[0] else None
    return lambda row: row[0].above.get(base) if row[0] else None


def _reader(name: str) -> Callable[[Row], Value]:
    """Peaks and levels are the highest of any call, running totals the sum of all calls."""
    base, _, last = name.rpartition(".")
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


def _check(needed: str, asked: str, known: set[str]) -> None:
    if not known or needed in known:
        return
    ours = {*_PLAIN, *_OF_RAM}
    grown = {
        f"{name.removesuffix('.current')}.{kind}"
        for name in known
        if name.endswith(".current")
        for kind in (_GREW, _ABOVE)
    }
    near = difflib.get_close_matches(asked, [*sorted(known), *sorted(grown), *sorted(ours)], n=4, cutoff=0.5)
    raise UnknownStatistic(
        f"the device has no statistic {asked!r}",
        f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(sorted(known | ours))}",
    )
