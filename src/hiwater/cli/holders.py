"""`hiwater holders`: what holds the objects of a Python program, from a running process or from a capture with
searches.

Exits with 0, with 2 for arguments or a capture that cannot be used, with 126 when the process does not answer, with 127
when it is not there, and with 125 for a failure of hiwater's own.
"""

from __future__ import annotations

import argparse
import time

from hiwater.analysis.holders import Holders, find_holders
from hiwater.analysis.source import Sources
from hiwater.capture import follow, holder_request
from hiwater.capture.follow import Follower
from hiwater.capture.holders import last_search, read_searches
from hiwater.capture.tables import Tables
from hiwater.cli import injected, output, progress
from hiwater.cli import report as report_verb
from hiwater.cli.messages import say
from hiwater.cli.parsing import Parser
from hiwater.errors import AttachRefused, BadRequest, CaptureError, UsageError
from hiwater.report.export import json_holders
from hiwater.report.text import holders as text_holders

BEGIN_SECONDS, SEARCH_SECONDS = 9.0, 150.0
ALL = 1 << 30
PARSER = {
    "usage": "hiwater holders [options] (PID | CAPTURE)",
    "usual": ("--type", "--line", "--wait", "--pid", "--format"),
    "description": (
        "Shows which objects hold the memory of a Python program: how many of which type, what holds them, which line"
        " allocated them, and what would be freed without them. For a process that is being recorded, it searches a"
        " copy of the process, so the program goes on."
    ),
    "epilog": """examples:
  hiwater holders 4711                     what holds the memory of process 4711, which `hiwater run` records
  hiwater holders 4711 --type Row          what holds its objects of type Row
  hiwater holders 4711 --line db.py:41     what holds the objects that this line allocated
  hiwater holders 4711 --wait 60           search now and in 60 s, and show what has grown
  hiwater holders run.hiw                  the last search of a recording (`hiwater run --holders`, `hiwater.holders()`)
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("source", metavar="PID|CAPTURE", help="a process that is being recorded, or a capture or a run")
    parser.option(
        "--pid N",
        "this process of a run (default: the first one while it runs, and then the one with the largest objects)",
        type=int,
    )
    parser.option("--type TYPE", "show what holds objects of this type: Row, app.models.Row, 'app.*'")
    parser.option("--line FILE:LINE", "show what holds objects that this line allocated")
    parser.option("--search N", "show search N of the capture, without a new search (default: the last one)", type=int)
    parser.option("--since N", "show what has grown since search N of the capture", type=int)
    parser.option("--wait SECONDS", "search now and again after so many seconds, and show what has grown", type=float)
    parser.option("--limit N", "show N groups (default: 10)", type=int, default=10)
    parser.option("--format", "the format (default: text)", choices=("text", "json"), default="text")
    parser.option("-o, --output OUT", "write to this file")


def run(arguments: argparse.Namespace) -> int:
    """Search where a process runs, show what was found, and return the exit code. Raises HiwaterError."""
    what = _what(arguments)
    if arguments.limit < 1 or (arguments.wait is not None and not arguments.wait >= 0):
        raise UsageError("--limit must be 1 or more, and --wait must not be negative", "give another number")
    tables, number, since = _searched(arguments)
    limit = ALL if arguments.format == "json" else arguments.limit
    with progress.shown("reading what holds the objects"):
        found = find_holders(tables, number=number, since=since, what=what, limit=limit)
    _show(found, tables, arguments)
    return 0


def _what(arguments: argparse.Namespace) -> str:
    if arguments.type is not None and arguments.line is not None:
        raise BadRequest("--type and --line cannot be used together", "leave one of them out")
    if arguments.line is not None:
        file, _, line = arguments.line.rpartition(":")
        if not file or not line.isdecimal():
            raise UsageError(f"--line {arguments.line!r} is not a place", "write it as db.py:41")
    return str(arguments.type or arguments.line or "")


def _searched(arguments: argparse.Namespace) -> tuple[Tables, int | None, int | None]:
    """The tables, and which search is to be shown, and since which one."""
    pid = follow.pid_in(arguments.source)
    follower = follow.capture_of(pid) if pid is not None else _living(arguments)
    if follower is None:
        if arguments.wait is not None:
            raise BadRequest(
                f"--wait needs a running process, and nobody writes {arguments.source!r} any more",
                "compare its searches with --since N",
            )
        return _with_largest_objects(arguments), arguments.search, arguments.since
    try:
        since = arguments.since
        number = arguments.search
        if number is None:
            if arguments.wait is not None:
                since = _search(follower)
                time.sleep(arguments.wait)
            number = _search(follower)
        return follower.read(), number, since
    finally:
        follower.close()


def _with_largest_objects(arguments: argparse.Namespace) -> Tables:
    """Of the processes of a run that have searches, or of the one that was chosen."""
    captures = report_verb.open_run([arguments.source], pid=arguments.pid).captures
    if len(captures) == 1:
        return captures[0].tables
    bytes_of = {capture: search.bytes for capture in captures if (search := last_search(capture.tables)) is not None}
    largest = max(bytes_of, key=bytes_of.__getitem__, default=captures[0])
    if len(bytes_of) > 1:
        say(
            f"shows process {largest.process.pid}, whose objects are the largest of {len(bytes_of)} processes; --pid"
            " shows another"
        )
    return largest.tables


def _living(arguments: argparse.Namespace) -> Follower | None:
    """The capture, if it can be searched: a living process writes it, and no search of it was chosen. A folder, a
    merged capture and what cannot be read are none: opening them says why."""
    if arguments.search is not None:
        return None
    try:
        follower = Follower(arguments.source)
        if arguments.pid not in (None, follower.header["pid"]):
            follower.close()
            follower = Follower(report_verb.open_run([arguments.source], pid=arguments.pid).captures[0].path)
    except CaptureError:
        return None
    if follower.is_alive:
        return follower
    follower.close()
    return None


def _search(follower: Follower) -> int:
    """Have the process search. Returns the number of the search in its capture."""
    pid = follower.header["pid"]
    with progress.shown(f"searching process {pid}"):
        request = holder_request.search(follower, BEGIN_SECONDS, SEARCH_SECONDS)
    if request is None:
        raise AttachRefused(
            f"process {pid} has not begun a search within {BEGIN_SECONDS:.0f} s: its main thread has run no Python"
            f" ({injected.occupation(pid)})",
            "try again: it begins as soon as its main thread runs Python",
        )
    found = [search.number for search in read_searches(follower.read()) if search.request == request]
    return found[-1]


def _show(found: Holders, tables: Tables, arguments: argparse.Namespace) -> None:
    with output.opened(arguments) as stream:
        if arguments.format == "json":
            json_holders.write(found, stream)
        else:
            text_holders.write(found, Sources.of(tables), tables.facts.get("cwd", ""), stream)
