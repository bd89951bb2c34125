"""The report of a line profile as text and as data."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Sequence

from hiwater._os.sizes import format_size
from hiwater.lines.figures import FunctionLines, LineFigures

SCHEMA = "hiwater.lines/1"
_COLUMNS = (("line", 6), ("calls", 9), ("kept", 12), ("allocated", 12), ("peak above", 12), ("resident", 12))
_HEAP = {"kept", "allocated", "peak above"}
_OF_HEAP = "kept, allocated and the peak above a line's start are its own thread's, with all that the line calls"
_OF_RESIDENT = "resident is the whole process's growth"


def as_data(functions: Iterable[FunctionLines], why_without_heap: str = "") -> dict[str, object]:
    """Return the profile as plain data for JSON. If `why_without_heap` is not empty, heap figures are null."""
    return {
        "schema": SCHEMA,
        "why_without_heap": why_without_heap,
        "functions": [function.to_dict() for function in functions],
    }


def as_text(
    functions: Sequence[FunctionLines], *, precision: int = 1, resident: bool = True, why_without_heap: str = ""
) -> str:
    """Return the report: the source of every function, with figures for the lines that ran.

    `precision` is the number of digits after the point; `why_without_heap` says why there are no heap figures.
    """
    left_out = (_HEAP if why_without_heap else set()) | (set() if resident else {"resident"})
    columns = [(name, width) for name, width in _COLUMNS if name not in left_out]
    said = [_OF_RESIDENT] if resident else []
    said.insert(0, f"there are no heap figures, {why_without_heap}" if why_without_heap else _OF_HEAP)
    blocks = [_function(function, precision, columns) for function in functions]
    return "\n\n".join([*blocks, "; ".join(said) + "."]) + "\n" if blocks else ""


def _function(function: FunctionLines, precision: int, columns: Sequence[tuple[str, int]]) -> str:
    widths = [width + max(0, precision - 1) if width == 12 else width for _, width in columns]
    heading = " ".join(f"{name:>{width}}" for (name, _), width in zip(columns, widths, strict=True))
    ran = {figures.line: figures for figures in function.lines}
    many = function.child_processes
    children = f", with the calls of {many} child {'process' if many == 1 else 'processes'}" if many else ""
    text = [f"{function.name}  {_shown(function.file)}:{function.first_line}{children}", "", f"{heading}  source"]
    text.append("-" * (len(heading) + 40))
    if not ran:
        return "\n".join([*text[:1], "  did not run"])
    is_known = linecache.getline(function.file, function.first_line)
    for number in range(function.first_line, function.last_line + 1) if is_known else sorted(ran):
        source = linecache.getline(function.file, number).rstrip()
        cells = _cells(ran.get(number), number, precision, [name for name, _ in columns])
        row = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        text.append(f"{row}  {printable(source)}".rstrip())
    return "\n".join(text)


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
    """The path, relative if the file is below the current folder."""
    try:
        here = os.getcwd() + os.sep
    except OSError:
        return file
    return file.removeprefix(here)


def printable(source: str) -> str:
    """Source text that is safe on a terminal: tabs as blanks, without other control characters."""
    return "".join(c for c in source.expandtabs(4) if c.isprintable() or c == " ")
