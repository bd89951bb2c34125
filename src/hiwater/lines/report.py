"""The report of a line profile: plain text that a program can print at its end, and plain data."""

from __future__ import annotations

import linecache
import os

from hiwater._os.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hiwater.lines.figures import FunctionLines, LineFigures

SCHEMA = "hiwater.lines/1"
_COLUMNS = (("line", 6), ("calls", 9), ("kept", 12), ("allocated", 12), ("peak above", 12), ("resident", 12))
_HEAP = {"kept", "allocated", "peak above"}
_OF_HEAP = "kept, allocated and the peak above a line's start are its own thread's, with all that the line calls"
_OF_RESIDENT = "resident is the whole process's growth"


def as_data(functions: Iterable[FunctionLines], why_without_heap: str = "") -> dict[str, object]:
    """Return the profile as plain data for JSON. Figures of the heap are null where `why_without_heap` says why."""
    return {
        "schema": SCHEMA,
        "why_without_heap": why_without_heap,
        "functions": [function.to_dict() for function in functions],
    }


def as_text(
    functions: Sequence[FunctionLines], *, precision: int = 1, resident: bool = True, why_without_heap: str = ""
) -> str:
    """Return the report: every line of every function with its source, what did nothing left blank.

    `precision` is the number of digits after the point; `why_without_heap` says why there are no figures of the heap.
    """
    columns = [
        (name, width)
        for name, width in _COLUMNS
        if (name != "resident" or resident) and not (name in _HEAP and why_without_heap)
    ]
    said = [_OF_RESIDENT] if resident else []
    said.insert(0, f"there are no heap figures, {why_without_heap}" if why_without_heap else _OF_HEAP)
    blocks = [_function(function, precision, columns) for function in functions]
    return "\n\n".join([*blocks, "; ".join(said) + "."]) + "\n" if blocks else ""


def _function(function: FunctionLines, precision: int, columns: Sequence[tuple[str, int]]) -> str:
    widths = [width + max(0, precision - 1) if width == 12 else width for _, width in columns]
    heading = " ".join(f"{name:>{width}}" for (name, _), width in zip(columns, widths, strict=True))
    ran = {figures.line: figures for figures in function.lines}
    text = [f"{function.name}  {_shown(function.file)}:{function.first_line}", "", f"{heading}  source"]
    text.append("-" * (len(heading) + 40))
    if not ran:
        return "\n".join([*text[:1], "  did not run"])
    for number in _lines_shown(function, ran):
        source = linecache.getline(function.file, number).rstrip()
        cells = _cells(ran.get(number), number, precision, [name for name, _ in columns])
        row = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        text.append(f"{row}  {printable(source)}".rstrip())
    return "\n".join(text)


def _lines_shown(function: FunctionLines, ran: dict[int, LineFigures]) -> Iterable[int]:
    """All lines of the function where its source is known, else those that ran."""
    if linecache.getline(function.file, function.first_line):
        return range(function.first_line, function.last_line + 1)
    return sorted(ran)


def _cells(figures: LineFigures | None, number: int, precision: int, columns: Sequence[str]) -> list[str]:
    if figures is None:
        return [str(number), *[""] * (len(columns) - 1)]
    amounts = {
        "kept": figures.kept_bytes, "allocated": figures.allocated_bytes, "peak above": figures.peak_bytes,
        "resident": figures.resident_bytes,
    }  # fmt: skip
    shown = [amounts[name] for name in columns if name in amounts]
    return [str(number), f"{figures.calls:,}", *(format_size(amount, precision) if amount else "·" for amount in shown)]


def _shown(file: str) -> str:
    """The path as short as it can be typed from here."""
    try:
        here = os.getcwd() + os.sep
    except OSError:
        return file
    return file.removeprefix(here)


def printable(source: str) -> str:
    """Source text that moves no cursor: tabs as blanks, other controls left out."""
    return "".join(c for c in source.expandtabs(4) if c.isprintable() or c == " ")
