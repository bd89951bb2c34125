"""Makes what is shown below cells, in a process of its own: writes texts, by what they are, as JSON to stdout."""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hiwater import capture as captures
from hiwater.analysis.curves import Curve, Picture, Span
from hiwater.analysis.naming import is_library
from hiwater.analysis.ranking import own_lines
from hiwater.analysis.source import Sources
from hiwater.errors import HiwaterError, PlotLibraryMissing
from hiwater.report.export import plot
from hiwater.report.formatting import printable, seconds, share, size
from hiwater.report.html import page
from hiwater.report.request import Report
from hiwater.report.text import lines, timeline_plot

_LINES_SHOWN, _LINES_READ, _SMALLEST_SHARE = 8, 1000, 1000
_LONGEST_PAUSE = 0.05  # between two cells in a drawing, as a part of the time that all cells took


def main(arguments: Sequence[str] | None = None) -> None:
    """`report CAPTURE [--lines] [--kept] [--no-page]`, or `timeline` with the cells as JSON on stdin."""
    parser = argparse.ArgumentParser(prog="hiwater.notebook.rendering")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("timeline")
    report = verbs.add_parser("report")
    report.add_argument("capture")
    for flag in ("--lines", "--kept", "--no-page"):
        report.add_argument(flag, action="store_true")
    asked = parser.parse_args(arguments)
    try:
        said = _report(asked) if asked.verb == "report" else drawn(json.load(sys.stdin))
    except HiwaterError as error:
        sys.exit(str(error))
    json.dump(said, sys.stdout)


# The report of a cell


def _report(asked: argparse.Namespace) -> dict[str, str]:
    capture = captures.open(asked.capture)
    report = Report(capture, capture.end if asked.kept else capture.peak)
    text = io.StringIO()
    text.writelines(line + "\n" for line in _summary(report))
    if asked.lines:
        lines.write(report, text)
    else:
        text.writelines(line + "\n" for line in _held(report))
    said = {"text": text.getvalue()}
    if not asked.no_page:
        html = io.StringIO()
        page.write([report], html)
        said["page"] = html.getvalue()
    return said


def _summary(report: Report) -> Iterator[str]:
    """Both peaks, what stayed, and what is wrong with the recording, if anything is."""
    capture, peak, resident = report.capture, report.capture.peak, report.capture.resident
    yield f"hiwater: {printable(report.title, 60)}, {seconds(capture.process.duration_ns)}, of what was allocated meanwhile:"
    yield (
        f"  peak {size(peak.allocated_bytes)} allocated ({report.exactness(peak)}, {peak.allocated_blocks:,} blocks), "
        f"kept {size(capture.end.allocated_bytes)}"
    )
    how = f"within {size(resident.error_bytes)}" if resident.exact else "at least"
    yield f"  resident {size(resident.start_bytes)} at the start, {size(resident.peak_bytes)} at the peak ({how})"
    if capture.process.stop_reason:
        yield f"  ! recording stopped early: {printable(capture.process.stop_reason, 200)}"
    for problem in report.problems:
        yield f"  ! {printable(problem, 200)}"


def _held(report: Report) -> Iterator[str]:
    """The lines that held most, and in one row what no line of the user's asked for; what is below a thousandth says nothing."""
    sources = Sources.of(report.capture.tables)
    whole = report.holdings.total_bytes
    every = own_lines(report.capture.tables, report.holdings, _LINES_READ)
    yield f"  held at {report.snapshot_words}, by lines of your code with what they called in libraries:"
    for line in [line for line in every if not is_library(line.frame.file)][:_LINES_SHOWN]:
        if line.bytes * _SMALLEST_SHARE < whole:
            break
        frame = line.frame
        where = printable(f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}", 40)
        source = printable(sources.line(frame.file, frame.line), 70)
        yield f"  {size(line.bytes):>11} {share(line.bytes, whole):>8}  {where:<14} {source}".rstrip()
    beside = sum(line.bytes for line in every if is_library(line.frame.file))
    if beside * _SMALLEST_SHARE >= whole > 0:
        yield f"  {size(beside):>11} {share(beside, whole):>8}  outside your code: the kernel's own"
    if not whole:
        yield "  nothing"


# The session over time


def drawn(cells: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The drawing of these cells by MIME type. When in a cell its peak was is not known: it is drawn at its peak throughout."""
    spans, is_shortened = _bands(cells)
    at = [snapshot for span in spans for snapshot in (span.start, span.end)]
    held = [size for cell in cells for size in (cell["peak_bytes"], cell["end_bytes"])]
    curve = Curve("resident, each cell at its peak", "resident", np.array(at), np.array(held, np.float64))
    title, axis = f"{len(cells)} cells", "seconds since the start"
    if is_shortened:
        title, axis = f"{title}; long pauses between them are shortened", "seconds"
    picture = Picture(title, (curve,), spans, axis)
    text, image = io.StringIO(), io.BytesIO()
    timeline_plot.write([picture], text)
    said = {"text/plain": text.getvalue().rstrip()}
    try:
        plot.write([picture], "png", image)
    except PlotLibraryMissing:
        return said
    return {**said, "image/png": base64.b64encode(image.getvalue()).decode("ascii")}


def _bands(cells: Sequence[dict[str, Any]]) -> tuple[tuple[Span, ...], bool]:
    """Where each cell stands, and whether pauses were shortened: beside the minutes of a reader's thought the cells would not be seen."""
    longest_pause = sum(cell["seconds"] for cell in cells) * _LONGEST_PAUSE
    spans: list[Span] = []
    left_out, ended = 0.0, cells[0]["start"]
    for cell in cells:
        left_out += max(0.0, cell["start"] - ended - longest_pause)
        ended = max(ended, cell["start"] + cell["seconds"])
        start = cell["start"] - cells[0]["start"] - left_out
        spans.append(Span(cell["name"], start, start + cell["seconds"], len(spans) % 3))
    return tuple(spans), left_out > 0
