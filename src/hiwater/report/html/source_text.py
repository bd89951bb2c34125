"""The source text in a page: the user's own files whole, files of libraries only around lines that allocated memory."""

from __future__ import annotations

from hiwater.analysis.lines import FileUse, annotate
from hiwater.analysis.source import Sources
from hiwater.report.formatting import printable
from hiwater.report.html.page_document import SourceData, SourceFile, SourcePiece
from hiwater.report.request import Report

_LARGEST_FILE = 200_000  # characters; of a longer file, and of libraries, only the lines around those with memory
_MOST_TEXT = 2_000_000  # characters in a page; files with most memory come first
_LONGEST_LINE = 400
_AROUND = 6


def embedded(report: Report, choice: str, numbers: dict[str, int]) -> SourceData:
    """The texts by file number, files with most memory first, and the number of files that did not fit."""
    capture = report.capture
    sources = Sources.of(capture.tables)
    files, left_out, room = list[SourceFile](), 0, _MOST_TEXT
    for use in annotate(report.snapshot, capture.end) if choice != "none" else ():
        if use.file not in numbers or not (use.is_own or choice == "all"):
            continue
        lines = sources.lines(use.file)
        pieces = _pieces(use, lines)
        size = sum(len(piece["text"]) for piece in pieces)
        if not pieces or size > room:
            left_out += bool(pieces)
            continue
        room -= size
        is_changed = use.file in sources.changed
        files.append({"file": numbers[use.file], "lines": len(lines), "pieces": pieces, "changed": is_changed})
    return {"which": choice, "files": files, "left_out": left_out}


def _pieces(use: FileUse, lines: list[str]) -> list[SourcePiece]:
    if not lines:
        return []
    if use.is_own and sum(map(len, lines)) <= _LARGEST_FILE:
        return [_piece(1, lines)]
    around = {number for line in use.lines for number in range(line.line - _AROUND, line.line + _AROUND + 1)}
    wanted = sorted(number for number in around if 0 < number <= len(lines))
    pieces, first = [], 0
    for place, number in enumerate(wanted):
        if place + 1 == len(wanted) or wanted[place + 1] != number + 1:
            pieces.append(_piece(wanted[first], lines[wanted[first] - 1 : number]))
            first = place + 1
    return pieces


def _piece(first: int, lines: list[str]) -> SourcePiece:
    """Lines that are safe to show: nothing in them changes the direction of text."""
    return {"line": first, "text": "\n".join(printable(line.expandtabs(), _LONGEST_LINE) for line in lines)}
