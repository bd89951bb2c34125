"""`hiwater symbolize`: finds the names of native functions where the program ran, so that a capture can be moved.

Exits with 0, with 2 for a capture that cannot be read or has no native frames, with 125 when the names cannot be
written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hiwater.cli import progress
from hiwater.cli import report as report_verb
from hiwater.cli.messages import say
from hiwater.cli.parsing import Parser
from hiwater.errors import OutputFailed

PARSER = {
    "description": (
        "Writes the names and source lines of a recording's native functions into CAPTURE.symbols, beside the capture."
        " With this file, reports show them on another machine, where the libraries are others."
    ),
    "epilog": """examples:
  hiwater run --native -o run.hiw train.py
  hiwater symbolize run.hiw                  copy run.hiw and run.hiw.symbols to another machine
  DEBUGINFOD_URLS=https://debuginfod.debian.net hiwater symbolize --debuginfod run.hiw
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "capture", metavar="CAPTURE", help="a capture of `hiwater run --native`, with those of its processes"
    )
    parser.option("--debuginfod", "get debug information that is not here from the servers that DEBUGINFOD_URLS names")


def run(arguments: argparse.Namespace) -> int:
    """Write the names, and return the exit code. Raises HiwaterError."""
    from hiwater.analysis.symbols import debuginfod, names_file
    from hiwater.report import native_frames

    servers = debuginfod.Servers() if arguments.debuginfod else None
    path = names_file.symbols_path(Path(arguments.capture))
    with progress.shown(f"finding names for {arguments.capture}"):
        run = report_verb.open_run([arguments.capture])
        names = native_frames.named(run.captures, fetch=servers.fetch if servers else None)
    for remark in [*names.remarks(), *(f"no answer from {url}" for url in (servers.unreachable if servers else ()))]:
        say(remark)
    try:
        names_file.write(path, names.given)
    except OSError as error:
        raise OutputFailed(f"{str(path)!r} cannot be written ({error.strerror})", "write to its folder") from error
    count = sum(len(one.places) for one in names.given.values())
    say(f"{count:,} places in {len(names.given):,} libraries: copy {str(path)!r} with the capture")
    return 0
