"""Makes the output below cells, in a separate process: writes JSON with the texts by MIME type to stdout."""

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
from hiwater._os.headline import OTHER_CODE, sentence
from hiwater.analysis.curves import Curve, Plot, Span
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import Group, Ranking, UserLine, held_by, rank_lines
from hiwater.capture.native_frames import Frames
from hiwater.errors import HiwaterError, PlotLibraryMissing
from hiwater.report import advice, native_frames
from hiwater.report.diff_request import resident_exactness
from hiwater.report.export import plot
from hiwater.report.formatting import printable, seconds, share, size
from hiwater.report.html import page
from hiwater.report.request import Report
from hiwater.report.text import lines, timeline_plot

_LINES_SHOWN, _SMALLEST_SHARE = 8, 1000
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
    native_frames.show([capture], Frames.python, is_page=not asked.no_page)
    report = Report(capture, capture.end if asked.kept else capture.peak)
    text, sources = io.StringIO(), Sources.of(capture.tables)
    ranking = rank_lines(capture.tables, report.holdings)
    most = _most(report, ranking, sources)
    text.write(f"hiwater: {printable(report.title, 60)}, {seconds(capture.process.duration_ns)}; {most}\n")
    text.writelines(line + "\n" for line in _summary(report))
    if asked.lines:
        lines.write(report, text)
    else:
        text.writelines(line + "\n" for line in _held(report, ranking, sources))
        text.writelines(f"  try: {printable(one, 400)}\n" for one in advice.texts(capture))
    said = {"text": text.getvalue()}
    if not asked.no_page:
        html = io.StringIO()
        page.write([report], html)
        said["page"] = html.getvalue()
    return said


def _most(report: Report, ranking: Ranking, sources: Sources) -> str:
    """The line to change, in the words of every report, and its source."""
    line, lead = ranking.headline, f"{size(ranking.total_bytes)} allocated at the {report.snapshot.name}"
    if line is None or (line.group == Group.other and not ranking.lines):
        return f"{lead}, nothing of it by your code"
    place = f"{_place(line)} in {printable(line.frame.function, 60)}"
    source = printable(sources.line(line.frame.file, line.frame.line), 70)
    return f"{''.join(sentence(lead, ranking.top_line, place, ranking.total_bytes))}  {source}".rstrip()


def _place(line: UserLine) -> str:
    return printable(f"{line.frame.file.rsplit('/', 1)[-1]}:{line.frame.line}", 40)


def _summary(report: Report) -> Iterator[str]:
    """Both peaks, what was kept, and problems of the recording."""
    capture, peak, resident = report.capture, report.capture.peak, report.capture.resident
    yield (
        f"  peak {size(peak.allocated_bytes)} allocated ({report.exactness(peak)}, {peak.allocated_blocks:,} blocks), "
        f"kept {size(capture.end.allocated_bytes)}"
    )
    overhead = f" and {size(resident.overhead_bytes)} overhead of hiwater" if resident.overhead_bytes else ""
    yield (
        f"  resident {size(resident.program_start_bytes)} at the start, {size(resident.program_peak_bytes)} at the peak"
        f" ({resident_exactness(capture)}){overhead}"
    )
    if capture.process.stop_reason:
        yield f"  ! recording stopped early: {printable(capture.process.stop_reason, 200)}"
    for problem in report.problems:
        yield f"  ! {printable(problem, 200)}"


def _held(report: Report, ranking: Ranking, sources: Sources) -> Iterator[str]:
    """The lines that held most, and one row for memory outside the user's lines. Rows below a thousandth are left
    out."""
    whole = report.holdings.total_bytes
    yield f"  held at {report.snapshot_words}, by lines of your code with what they called in libraries:"
    for line in ranking.lines[:_LINES_SHOWN]:
        if line.bytes * _SMALLEST_SHARE < whole:
            break
        frame = line.frame
        source = printable(sources.line(frame.file, frame.line), 70)
        place = line.before + _place(line)
        yield f"  {size(line.bytes):>11} {share(line.bytes, whole):>8}  {place:<14} {source}".rstrip()
    apart = {
        "imports": held_by(ranking.imports),
        f"{OTHER_CODE}: the kernel's own": held_by(ranking.other),
        "never touched, so not in RAM": ranking.untouched_bytes,
    }
    for what, count in apart.items():
        if count * _SMALLEST_SHARE >= whole > 0:
            yield f"  {size(count):>11} {share(count, whole):>8}  {what}"
    if not whole:
        yield "  nothing"


# The session over time


def drawn(cells: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The drawing of these cells by MIME type. The time of the peak in a cell is unknown, so a cell is drawn at its
    peak throughout."""
    spans, is_shortened = _bands(cells)
    at = [snapshot for span in spans for snapshot in (span.start, span.end)]
    held = [size for cell in cells for size in (cell["peak_bytes"], cell["end_bytes"])]
    curve = Curve("resident, each cell at its peak", "resident", np.array(at), np.array(held, np.float64))
    title, axis = f"{len(cells)} cells", "seconds since the start"
    if is_shortened:
        title, axis = f"{title}; long pauses between them are shortened", "seconds"
    cells_plot = Plot(title, (curve,), spans, axis)
    text, image = io.StringIO(), io.BytesIO()
    timeline_plot.draw([cells_plot], text)
    said = {"text/plain": text.getvalue().rstrip()}
    try:
        plot.draw([cells_plot], "png", image)
    except PlotLibraryMissing:
        return said
    return {**said, "image/png": base64.b64encode(image.getvalue()).decode("ascii")}


def _bands(cells: Sequence[dict[str, Any]]) -> tuple[tuple[Span, ...], bool]:
    """The place of each cell, and whether pauses were shortened, since short cells could not be seen next to pauses
    of minutes."""
    longest_pause = sum(cell["seconds"] for cell in cells) * _LONGEST_PAUSE
    spans: list[Span] = []
    left_out, ended = 0.0, cells[0]["start"]
    for cell in cells:
        left_out += max(0.0, cell["start"] - ended - longest_pause)
        ended = max(ended, cell["start"] + cell["seconds"])
        start = cell["start"] - cells[0]["start"] - left_out
        spans.append(Span(cell["name"], start, start + cell["seconds"], len(spans) % 3))
    return tuple(spans), left_out > 0
