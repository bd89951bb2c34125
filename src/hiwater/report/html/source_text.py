"""Source text that a page carries: of the user's own files whole, of libraries' only what lies about lines that asked for memory."""

from __future__ import annotations

from typing import Any

from hiwater.analysis.lines import FileUse, annotate
from hiwater.analysis.source import Sources
from hiwater.report.formatting import printable
from hiwater.report.request import Report

CHOICES = ("own", "all", "none")
_SUFFIXES = (".py", ".pyw", ".pyx", ".pyi")
_LARGEST_FILE = 200_000  # characters; of a longer one, and of libraries, the lines about those that count
_MOST_TEXT = 2_000_000  # characters in a page; the hottest files come first
_LONGEST_LINE = 400
_AROUND = 6


def embedded(report: Report, choice: str, numbers: dict[str, int]) -> dict[str, Any]:
    """The texts by file number, hottest file first, and how many files did not fit."""
    capture = report.capture
    sources = Sources.of(capture.tables)
    cells = {cell.name for cell in capture.tables.cells.values()}
    files, left_out, room = [], 0, _MOST_TEXT
    for use in annotate(report.snapshot, capture.end) if choice != "none" else ():
        if use.file not in numbers or not (use.is_own or choice == "all"):
            continue
        lines = sources.lines(use.file) if use.file in cells else _source_lines(sources, use.file)
        pieces = _pieces(use, lines)
        size = sum(len(piece["text"]) for piece in pieces)
        if not pieces or size > room:
            left_out += bool(pieces)
            continue
        room -= size
        files.append(
            {
                "file": numbers[use.file],
                "lines": len(lines),
                "pieces": pieces,
                "changed": use.file in sources.changed,
            }
        )
    return {"which": choice, "files": files, "left_out": left_out}


def _source_lines(sources: Sources, file: str) -> list[str]:
    """Nothing for files that are no Python: a capture may name any file, and a page is for showing around."""
    lines = sources.lines(file)
    if file.endswith(_SUFFIXES) or (lines and lines[0].startswith("#!") and "python" in lines[0]):
        return lines
    return []


def _pieces(use: FileUse, lines: list[str]) -> list[dict[str, Any]]:
    if not lines:
        return []
    if use.is_own and sum(map(len, lines)) <= _LARGEST_FILE:
        return [_piece(1, lines)]
    wanted = sorted(
        {
            number
            for line in use.lines
            for number in range(line.line - _AROUND, line.line + _AROUND + 1)
            if 0 < number <= len(lines)
        }
    )
    pieces, first = [], 0
    for place, number in enumerate(wanted):
        if place + 1 == len(wanted) or wanted[place + 1] != number + 1:
            pieces.append(_piece(wanted[first], lines[wanted[first] - 1 : number]))
            first = place + 1
    return pieces


def _piece(first: int, lines: list[str]) -> dict[str, Any]:
    """Lines as they may be shown: nothing in them turns text around."""
    return {"line": first, "text": "\n".join(printable(line.expandtabs(), _LONGEST_LINE) for line in lines)}
