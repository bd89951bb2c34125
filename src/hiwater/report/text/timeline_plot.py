"""Timelines in characters, for a terminal: eight dots to a character (Unicode's Braille patterns), no library
needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

import numpy as np
import numpy.typing as npt
from rich.text import Text

from hiwater.analysis.curves import Curve, Plot, Span
from hiwater.report.formatting import printable, size
from hiwater.report.request import Report
from hiwater.report.text import terminal
from hiwater.report.timelines import plots_of

_ROWS = 16
_MARGIN = 12  # columns for the sizes on the left
_WIDEST = 160
_MOST_SPANS = 8
_COLOURS = {"resident": "cyan", "allocated": "yellow", "sum": "bright_black", "child": "green", "device": "magenta"}
_SEVERAL = ("cyan", "yellow", "green", "magenta", "red", "blue")
# The bit of each dot in a Braille pattern, by column (0, 1) and row from the top (Unicode 15, chapter 21.1).
_DOTS = np.array([[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]], np.int64)
_BRAILLE = 0x2800


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """Draw the captures of all reports."""
    draw(plots_of(reports), stream)


def draw(plots: Sequence[Plot], stream: TextIO, *, title: str | None = None) -> None:
    """Draw all recordings on the same axes, each from its own start."""
    console = terminal.console(stream)
    width = max(40, min(console.width, _WIDEST) - _MARGIN - 1)
    for line in _lines(plots, width, title):
        console.print(line, soft_wrap=True)


def _lines(plots: Sequence[Plot], width: int, title: str | None) -> Iterator[Text]:
    yield Text(printable(title or " · ".join(shown.title for shown in plots), width + _MARGIN), "bold")
    curves = [
        (curve, _colour(curve, number, len(plots))) for number, shown in enumerate(plots) for curve in shown.curves
    ]
    if not curves:
        yield Text("  nothing was recorded over time")
        return
    start = min(float(curve.seconds[0]) for curve, _ in curves)
    end = max(float(curve.seconds[-1]) for curve, _ in curves)
    highest = max(curve.peak[1] for curve, _ in curves) or 1.0
    yield from _canvas(curves, width, start, end, highest)
    left, right = f"{start:.2f} s", f"{end:.2f} s"
    yield Text(" " * _MARGIN + "└" + "─" * (width - 1), "dim")
    yield Text(" " * (_MARGIN + 1) + left + right.rjust(max(0, width - 1 - len(left))), "dim")
    if len(plots) == 1:
        yield from _spans(plots[0].spans, width, start, end)
    for number, shown in enumerate(plots):
        for curve in shown.curves:
            name = curve.label if len(plots) == 1 else f"{shown.title}: {curve.label}"
            at, peak = curve.peak
            yield Text.assemble(
                ("  ── ", _colour(curve, number, len(plots))),
                f"peak {size(int(peak)):>10} at {at:.2f} s  ", printable(name, 80),
            )  # fmt: skip


def _colour(curve: Curve, number: int, count: int) -> str:
    return _COLOURS[curve.kind] if count == 1 else _SEVERAL[number % len(_SEVERAL)]


def _canvas(curves: list[tuple[Curve, str]], width: int, start: float, end: float, highest: float) -> Iterator[Text]:
    cells = np.zeros((_ROWS, width), np.int64)
    colours = np.full((_ROWS, width), "", dtype=object)
    # The main curves last: their colour wins where curves meet.
    for curve, colour in sorted(curves, key=lambda one: one[0].kind in ("resident", "allocated")):
        dots = _dots(curve, 2 * width, 4 * _ROWS, start, end, highest)
        for column in (0, 1):
            for row in range(4):
                lit = dots[row::4, column::2]
                cells[lit] |= _DOTS[column, row]
                colours[lit] = colour
    for row in range(_ROWS):
        label = size(int(highest * (_ROWS - row) / _ROWS)) if row % 4 == 0 else ""
        line = Text(f"{label:>{_MARGIN - 1}} ", "dim")
        line.append("┤" if label else "│", "dim")
        for cell, colour in zip(cells[row].tolist(), colours[row].tolist(), strict=True):
            line.append(chr(_BRAILLE + cell) if cell else " ", colour)
        yield line


def _dots(curve: Curve, columns: int, rows: int, start: float, end: float, highest: float) -> npt.NDArray[np.bool_]:
    """Which dots a curve lights: in each column all from the lowest to the highest value in it, and on to the next."""
    dots = np.zeros((rows, columns), np.bool_)
    scale = (columns - 1) / (end - start) if end > start else 0.0
    column = np.clip(((curve.seconds - start) * scale).astype(np.int64), 0, columns - 1)
    height = np.clip((curve.bytes / highest * (rows - 1)).round().astype(np.int64), 0, rows - 1)
    low, high = np.full(columns, rows, np.int64), np.full(columns, -1, np.int64)
    np.minimum.at(low, column, height)
    np.maximum.at(high, column, height)
    last_of = dict(zip(column.tolist(), height.tolist(), strict=True))  # the last reading in each column
    value = -1
    for place in range(int(column[0]), int(column[-1]) + 1):
        bottom, top = int(low[place]), int(high[place])
        if top < 0:  # no reading in this column: as before
            bottom = top = value
        elif value >= 0:
            bottom, top = min(bottom, value), max(top, value)
        dots[rows - 1 - top : rows - bottom, place] = True
        value = last_of.get(place, value)
    return dots


def _spans(spans: Sequence[Span], width: int, start: float, end: float) -> Iterator[Text]:
    """The longest scopes, a line each, below the time they took."""
    if end <= start:
        return
    longest = sorted(spans, key=lambda span: span.start - span.end)[:_MOST_SPANS]
    for span in sorted(longest, key=lambda one: one.start):
        first = max(0, min(width - 1, int((span.start - start) / (end - start) * width)))
        last = max(first, min(width - 1, int((span.end - start) / (end - start) * width)))
        bar = "├" + "─" * max(0, last - first - 1) + ("┤" if last > first else "")
        yield Text.assemble(" " * (_MARGIN + first), (bar, "magenta"), " " + printable(span.name, 40))
    if len(spans) > len(longest):
        yield Text(" " * _MARGIN + f"… and {len(spans) - len(longest):,} shorter scopes", "dim")
