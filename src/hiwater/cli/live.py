"""`hiwater live`: shows a recording that goes on. It reads the captures, which are the recorders' own memory, and
changes nothing."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from hiwater._os.durations import parse_duration
from hiwater.cli.messages import say
from hiwater.report.live_views import View

if TYPE_CHECKING:  # numpy and rich are loaded when something is shown, not for `--help`
    from hiwater.cli.live_viewer import Viewer
    from hiwater.cli.parsing import Parser

_EPILOG = """\
examples:
  hiwater live 4711                   the process with this id
  hiwater live train.hiw              the capture of a run; several processes are shown as one
  hiwater live --plain 4711           without Textual
  hiwater live --once train.hiw       one reading, for scripts

keys: l lines, s stacks, t threads, k kinds of memory, p processes, d devices; m sets a marker, g shows growth since it
or live bytes; a shows all processes of the run together, n the next one alone; q leaves, and the program runs on
"""


PARSER = {
    "description": (
        "Shows what is live in a program that is being recorded, and what grows. The program is neither changed nor"
        " slowed."
    ),
    "epilog": _EPILOG,
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "target", metavar="PID|CAPTURE|FOLDER", help="a recorded process, its capture, or the folder of a run"
    )
    parser.option("--view", "the table at the start (default: lines)", choices=[*View], default=View.lines)
    parser.option(
        "--interval TIME",
        "the time between two readings (default: 1s); longer if a reading takes more than a hundredth of it",
        type=parse_duration,
        default=1.0,
    )
    parser.option("--plain", "draw on the terminal without Textual")
    parser.option("--once", "print one reading and end; the default if stdout is not a terminal")


def run(arguments: argparse.Namespace) -> int:
    """Show the recording until the viewer leaves, and return the exit code."""
    from hiwater.analysis.live_run import open_run
    from hiwater.cli.live_viewer import Viewer

    with suppress(ImportError):  # Windows has no such limit
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a file for each process of the run
    viewer = Viewer(open_run(arguments.target), arguments.view, arguments.interval)
    try:
        viewer.run.read()
        if arguments.once or not sys.stdout.isatty():
            return _print_once(viewer)
        if not arguments.plain:
            try:
                from hiwater.cli import live_screen
            except ImportError:
                say("Textual is not installed (pip install 'hiwater[live]'): drawing without it")
            else:
                return live_screen.show(viewer)
        from hiwater.cli import live_plain

        return live_plain.show(viewer)
    finally:
        viewer.run.close()


def _print_once(viewer: Viewer) -> int:
    from hiwater._os import ascii_text
    from hiwater.report.text.terminal import console

    ascii_text.use(sys.stdout)
    out = console(sys.stdout)
    for line in [*viewer.figures(out.width), *viewer.rows(out.width)]:
        line.rstrip()
        out.print(line, soft_wrap=True)
    sys.stdout.flush()
    return 0
