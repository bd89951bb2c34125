"""`hiwater snapshot`: a consistent copy of the capture of a running program, made from outside.

Exits with 0, with 2 for a capture that cannot be read or a process that has none, with 125 when the copy cannot be
written.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hiwater._os import destination
from hiwater._os.replacing import whole_file
from hiwater.capture import copying, follow, reader
from hiwater.cli.messages import say
from hiwater.cli.parsing import Parser
from hiwater.errors import UsageError

PARSER = {
    "description": (
        "Copies the capture of a running program, without stopping it. The process of another user needs that"
        " user's rights, or root's."
    ),
    "epilog": """examples:
  hiwater snapshot 4711 -o now.hiw             what process 4711 has recorded so far
  hiwater snapshot run.hiw -o now.hiw          the same, with the path of its capture
  hiwater report now.hiw --at end              what was live at that moment
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("source", metavar="PID|CAPTURE", help="a process that is being recorded, or its capture")
    parser.option("-o, --output FILE", "the copy", required=True)
    parser.option("-q, --quiet", "print errors only")


def run(arguments: argparse.Namespace) -> int:
    """Copy, and return the exit code. Raises HiwaterError."""
    output = destination.absolute(arguments.output)
    destination.check(output)
    pid = follow.pid_in(arguments.source)
    descriptor = _open(arguments.source, pid)
    try:
        if os.path.exists(output) and os.path.samestat(os.stat(output), os.fstat(descriptor)):
            raise UsageError(f"{arguments.output!r} is the capture itself", "choose another file with -o")
        content = copying.copy(descriptor, pid)
    finally:
        os.close(descriptor)
    try:
        with whole_file(Path(output)) as stream:
            stream.write(content)
    except OSError as error:
        raise destination.explain(output, error) from error
    if not arguments.quiet:
        say(
            f"snapshot of {arguments.source} written to {arguments.output}: read it with `hiwater report"
            f" {arguments.output} --at end`"
        )
    return 0


def _open(source: str, pid: int | None) -> int:
    """An open descriptor of the capture. Raises NoSuchProcess, ProcessNotReadable or MissingCapture."""
    if pid is None:
        return reader.open_file(Path(source))
    follower = follow.capture_of(pid)
    try:
        return reader.open_file(follower.path)
    finally:
        follower.close()
