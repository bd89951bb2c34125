"""What is asked of a test: limits from its markers, from the command line and from the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from hiwater._os.sizes import format_size, parse_size
from hiwater.errors import BadSize

FIGURES = {
    "peak": "allocated at the peak, above the start",
    "allocated": "allocated in all",
    "kept": "kept at the end",
    "resident": "resident at the peak, above the start",
    "device": "of a device at the peak, above the start",
    "blocks": "allocations in all",
}
"""What a limit may be of, and what each measures."""
_OTHERS = ("this_thread", "warmups")
Filter = Callable[[Any], bool]


@dataclass(slots=True)
class Wanted:
    """What is asked of one test: `limits` by figure, in bytes (`blocks`: a count)."""

    limits: dict[str, int] = field(default_factory=dict)
    peak_is_below: bool = False
    """Whether the peak must be below its limit, as `limit_memory` asks."""
    this_thread: bool = False
    warmups: int = 0
    leaks: int | None = None
    """Each stack must leave less than so many bytes allocated; None for no such limit."""
    leaks_filter: Filter | None = None
    leaks_of_this_thread: bool = False


def of_lines(lines: Iterable[str]) -> dict[str, int]:
    """The limits in lines such as `peak = 200 MiB`. Raises UsageError."""
    found = {}
    for line in lines:
        name, sign, size = (part.strip() for part in line.partition("="))
        if name not in FIGURES or not sign:
            raise pytest.UsageError(
                f"{line!r} is not a limit of hiwater; write FIGURE=SIZE, with one of {', '.join(FIGURES)}"
            )
        found[name] = read_size(size, f"the limit {line!r}")
    return found


def of_test(item: pytest.Item, default: Wanted, *, has_aliases: bool) -> Wanted | None:
    """What the markers of a test ask for; None if it has none. Raises UsageError."""
    markers = [marker for marker in item.iter_markers() if marker.name in ("hiwater", "limit_memory", "limit_leaks")]
    wanted = Wanted(dict(default.limits))
    found = False
    for marker in reversed(markers):  # the closest one last: it prevails
        where = f"@pytest.mark.{marker.name} of {item.nodeid}"  # retired word: pytest.mark, as it is written
        if marker.name == "hiwater":
            found = True
            _read_marker(wanted, marker, item, where)
        elif has_aliases:
            found = True
            _read_alias(wanted, marker, where)
    return wanted if found else None


def _read_marker(wanted: Wanted, marker: Any, item: pytest.Item, where: str) -> None:
    unknown = sorted(set(marker.kwargs) - {*FIGURES, *_OTHERS})
    if marker.args or unknown:
        what = f"has no {unknown[0]!r}" if unknown else "takes no positional arguments"
        raise pytest.UsageError(f"{where} {what}; it has {', '.join((*FIGURES, *_OTHERS))}")
    wanted.this_thread = bool(marker.kwargs.get("this_thread", wanted.this_thread))
    wanted.warmups = _warmups(marker.kwargs.get("warmups", wanted.warmups), where)
    for name in FIGURES:
        if name not in marker.kwargs:
            continue
        limit = _of_parameters(marker.kwargs[name], item, wanted.limits.get(name))
        wanted.peak_is_below &= name != "peak"
        if limit is None:
            wanted.limits.pop(name, None)
        else:
            wanted.limits[name] = read_size(limit, f"{name} of {where}")


def _of_parameters(limit: Any, item: pytest.Item, default: int | None) -> Any:
    called = getattr(item, "callspec", None)
    if isinstance(limit, Mapping):
        return limit.get(called.id if called is not None else "", default)
    if callable(limit):
        return limit(dict(called.params) if called is not None else {})
    return limit


def _read_alias(wanted: Wanted, marker: pytest.Mark, where: str) -> None:  # retired word: pytest has it
    names = {
        "limit_memory": ("memory_limit", "current_thread_only"),
        "limit_leaks": ("location_limit", "filter_fn", "warmups", "current_thread_only"),
    }[marker.name]
    given = dict(marker.kwargs)
    if len(marker.args) == 1:
        given[names[0]] = marker.args[0]
    unknown = sorted(set(given) - set(names))
    if unknown or names[0] not in given or len(marker.args) > 1:
        raise pytest.UsageError(f"{where} needs one size, and knows {', '.join(names[1:])} besides")
    # pytest-memray reads MB as 1024² bytes.
    size = re.sub(r"(?i)\b([\d.]*\s*)([KMGTP])B\s*$", r"\1\2iB", str(given[names[0]]))
    limit = read_size(size, where)
    if marker.name == "limit_memory":
        wanted.limits["peak"], wanted.peak_is_below = limit, True
        wanted.this_thread = bool(given.get("current_thread_only", False))
    else:
        wanted.leaks, wanted.leaks_filter = limit, given.get("filter_fn")
        wanted.warmups = _warmups(given.get("warmups", 0), where)
        wanted.leaks_of_this_thread = bool(given.get("current_thread_only", False))


def _warmups(count: Any, where: str) -> int:
    if type(count) is not int or count < 0:
        raise pytest.UsageError(f"warmups of {where} is {count!r}; give a whole number of 0 or more")
    return count


def read_size(size: Any, where: str) -> int:
    """Bytes of a size as it is written `where`. Raises UsageError."""
    try:
        return parse_size(str(size))
    except BadSize as error:
        raise pytest.UsageError(f"{where}: {error}") from None


def shown(figure: str, value: int) -> str:
    """A figure as text."""
    return f"{value:,}" if figure == "blocks" else format_size(value)
