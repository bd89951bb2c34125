"""`hiwater plot`: the timelines of captures and of mprof's files, as a file or on the terminal.

Exits with 0, with 2 for a wrong request or a capture that cannot be read, with 125 when the plot cannot be made or written.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hiwater import _registry
from hiwater._os.replacing import replacing
from hiwater.cli import progress
from hiwater.cli import report as report_verb
from hiwater.cli.messages import say
from hiwater.errors import BadRequest, HiwaterError, OutputFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.analysis.curves import Plot
    from hiwater.capture import Capture

_FORMATS = ("png", "svg", "pdf")
PARSER = {
    "description": "Draws what processes used over time, with their peaks, their children and the scopes they told of.",
    "epilog": """examples:
  hiwater plot run.hiw                           on the terminal
  hiwater plot run.hiw -o run.svg                a drawing (.png, .svg, .pdf; needs matplotlib)
  hiwater plot before.hiw after.hiw -o both.png  over one another, each from its own start
  hiwater plot run.hiw --window 10:20            from 10 s to 20 s
  hiwater plot mprofile_20260101120000.dat       what `mprof run` wrote
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "captures", metavar="CAPTURE", nargs="+", help="a capture (*.hiw), or a file of mprof's (*.dat)"
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="write a drawing: .png, .svg or .pdf")
    parser.add_argument("--terminal", action="store_true", help="draw with characters on stdout (default without -o)")
    parser.add_argument("--title", help="instead of the program's command line")
    parser.add_argument("--window", type=_window, metavar="T1:T2", help="only this stretch, in seconds from the start")
    parser.add_argument("--no-children", action="store_true", help="leave child processes out")
    parser.add_argument("--no-scopes", action="store_true", help="leave scopes out")


def _window(text: str) -> tuple[float, float]:
    first, separator, last = text.partition(":")
    try:
        start, end = float(first), float(last)
    except ValueError:
        start, end = 0.0, -1.0
    if not separator or not 0 <= start < end:
        raise argparse.ArgumentTypeError(f"{text!r} is not T1:T2, two times in seconds, the first below the second")
    return start, end


def run(arguments: argparse.Namespace) -> int:
    """Plot, and return the exit code. An error is one line on stderr."""
    try:
        output_format = _format_of(arguments)
        with progress.shown(f"reading {', '.join(arguments.captures)}"):
            plots = _plots(arguments)
        if output_format is None:
            _to_terminal(plots, arguments.title)
        else:
            write_file(plots, output_format, arguments.output, arguments.title)
    except HiwaterError as error:
        say(str(error), "plot")
        return error.exit_code
    return 0


def _format_of(arguments: argparse.Namespace) -> str | None:
    """The format of the file; None for the terminal. Raises BadRequest."""
    if arguments.output is None:
        return None
    if arguments.terminal:
        raise BadRequest("--terminal draws on the terminal and -o into a file", "leave out one of the two")
    return format_of_file(arguments.output)


def format_of_file(path: str) -> str:
    """The format of a file with this name. Raises BadRequest."""
    suffix = os.path.splitext(path)[1].lower().removeprefix(".")
    if suffix not in _FORMATS:
        raise BadRequest(f"{path!r} is no drawing that can be made", "end the name in .png, .svg or .pdf")
    return suffix


def _plots(arguments: argparse.Namespace) -> list[Plot]:
    """The plots, in the order of the command line. Raises HiwaterError."""
    from hiwater.analysis import curves

    foreign = _registry.load(_registry.TIMELINE_READER)
    opened: list[Capture | str] = []
    for path in arguments.captures:
        opened += [path] if foreign.is_profile(path) else report_verb.open_run([path]).captures
    plots = [
        foreign.read_plot(one, children=not arguments.no_children, functions=not arguments.no_scopes)
        if isinstance(one, str)
        else _of_capture(one, arguments, len(opened) > 1)
        for one in opened
    ]
    return [curves.window(shown, *arguments.window) for shown in plots] if arguments.window else plots


def _of_capture(capture: Capture, arguments: argparse.Namespace, is_one_of_several: bool) -> Plot:
    from hiwater.analysis import curves
    from hiwater.report.request import Report

    title = Report(capture, capture.peak, is_one_of_several=is_one_of_several).title
    return curves.plot_of(capture, title, children=not arguments.no_children, scopes=not arguments.no_scopes)


def _to_terminal(plots: Sequence[Plot], title: str | None) -> None:
    from hiwater.report.text import timeline_plot

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without these characters shows ? and not a traceback
    timeline_plot.write(plots, sys.stdout, title=title)


def write_file(plots: Sequence[Plot], output_format: str, path: str, title: str | None) -> None:
    """Write the plot. The file is replaced only when it is complete. Raises OutputFailed, PlotLibraryMissing."""
    from hiwater.report.export import plot

    drawn = io.BytesIO()
    plot.write(plots, output_format, drawn, title=title)
    try:
        with replacing(Path(path)) as stream:
            stream.buffer.write(drawn.getvalue())
    except OSError as error:
        raise OutputFailed(f"the plot cannot be written to {path!r} ({error.strerror})", "write elsewhere") from error
