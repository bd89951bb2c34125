"""`hiwater leaks`: which lines leak, from a capture with markers or phases, or from repeated calls of one function.

Exits with 0 if nothing leaks, 1 for a leak, 3 if there were too few calls to tell, 2 for arguments or a capture that
cannot be used, and 125 if the function failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from hiwater._os import settings
from hiwater.analysis.run_leaks import Leaks, find_leaks
from hiwater.analysis.source import Sources
from hiwater.analysis.suppressions import Suppression, read
from hiwater.capture.native_frames import Frames
from hiwater.cli import output, progress
from hiwater.cli import report as report_verb
from hiwater.cli.messages import say
from hiwater.cli.parsing import Parser
from hiwater.errors import MORE_PROCESSES, NotRunnable, UsageError
from hiwater.report import native_frames
from hiwater.report.export import json_leaks
from hiwater.report.text import leaks as text_leaks

FEWEST_CALLS = 12
MOST_CALLS = 10_000
_BAD_REQUEST, _FAILED = 2, 125
PARSER = {
    "usage": "hiwater leaks [options] (CAPTURE | FUNCTION)",
    "usual": ("--repeat", "--name", "--suppressions", "--format", "-o"),
    "description": (
        "Finds lines that allocate memory in each call of a function, or between markers or phases of a recording, and"
        " never free it. Bounded caches, queues and variables that are assigned again are no leaks."
    ),
    "epilog": """examples:
  hiwater leaks --repeat 30 app.py:handle    call handle() 30 times, and show what each call leaks
  hiwater leaks --repeat 30 pkg.mod:func     the same, for a function in a module
  hiwater leaks run.hiw                      a recording whose program called `hiwater.mark()` or used `hiwater.phase()`

The exit code is 0 if nothing leaks, 1 for a leak, 3 if there are too few calls or markers to tell, 2 for wrong
arguments, and 125 if the function failed.
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "source",
        metavar="CAPTURE|FUNCTION",
        help="a capture or a run, or with --repeat a function: pkg.mod:func or file.py:func",
    )
    parser.option(
        "--repeat N",
        f"record N calls of the function ({FEWEST_CALLS} to {MOST_CALLS:,}), with a garbage collection and a marker"
        " after each; a coroutine is run to its end",
        type=int,
    )
    parser.option("--name NAME", "test the markers or phases of this name (default: the name with most snapshots)")
    parser.option("--pid N", "test only this process of a run", type=int)
    parser.option("--suppressions FILE", "a TOML file that lists accepted growth, with reasons")
    report_verb.add_frames(parser)
    parser.option("--format", "the format (default: text)", choices=("text", "json"), default="text")
    parser.option("-o, --output OUT", "write to this file")


def run(arguments: argparse.Namespace) -> int:
    """Show the leaks, and return the exit code. Raises HiwaterError."""
    suppressions = _suppressions(arguments.suppressions)
    if arguments.repeat is None:
        return _show(arguments.source, arguments, suppressions)
    if arguments.pid is not None:
        raise UsageError("--pid and --repeat cannot be used together", "--repeat records one process: leave --pid out")
    if not FEWEST_CALLS <= arguments.repeat <= MOST_CALLS:
        raise UsageError(
            f"--repeat {arguments.repeat} is not between {FEWEST_CALLS} and {MOST_CALLS:,}",
            "30 calls are enough for most functions",
        )
    with tempfile.TemporaryDirectory(prefix="hiwater-leaks-") as folder:
        capture = os.path.join(folder, "calls.hiw")
        status = _record(arguments.source, arguments.repeat, capture)
        if status == _BAD_REQUEST:
            return status  # the message is the child's
        if status != 0:
            say(
                f"{arguments.source} failed in one of its calls (exit code {status}), so nothing was tested: call it"
                " without hiwater first"
            )
            return _FAILED
        return _show(capture, arguments, suppressions)


def _record(function: str, count: int, capture: str) -> int:
    """Record the calls in a process of their own, which has its own stdin, stdout and stderr from here. Returns the
    exit code."""
    words = (
        "run",
        "--quiet",
        "--no-children",
        "--holders",
        "-o",
        capture,
        "-m",
        "hiwater.recording.repeat",
        str(count),
        function,
    )
    try:
        return subprocess.run([sys.executable, "-m", "hiwater", *words], stdout=sys.__stderr__, check=False).returncode
    except OSError as error:
        raise NotRunnable(f"{function!r} cannot be run ({error.strerror})", MORE_PROCESSES) from error


def _suppressions(given: str | None) -> list[Suppression]:
    path = given or settings.here().path("suppressions")
    return read(path) if path else []


def _show(path: str, arguments: argparse.Namespace, suppressions: list[Suppression]) -> int:
    with progress.shown("testing call paths"):
        run = report_verb.open_run([path], pid=arguments.pid)
        remarks = native_frames.show(run.captures, Frames(arguments.frames))
        leaks = find_leaks(run, name=arguments.name, suppressions=suppressions)
    for remark in remarks:
        say(remark)
    with output.opened(arguments) as stream:
        if arguments.format == "json":
            json_leaks.write(leaks, stream)
        else:
            tables = run.captures[0].tables
            text_leaks.write(leaks, Sources.of(tables), tables.facts.get("cwd", ""), stream)
    return _exit_code(leaks)


def _exit_code(leaks: Leaks) -> int:
    if leaks.has_found:
        return 1
    return 0 if leaks.can_tell else 3
