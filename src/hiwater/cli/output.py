"""The output of a report: standard output, a pager, or a file, which is replaced only when the report is complete."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from hiwater._os import ascii_text
from hiwater._os.replacing import replacing
from hiwater.cli import pager
from hiwater.cli.parsing import Parser
from hiwater.cli.run_arguments import FILE_SUFFIXES
from hiwater.errors import BadRequest, OutputFailed

STDOUT = "-"
FOR_PEOPLE = ("text", "tree", "table", "lines", "markdown", "timeline")
BINARY = ("pprof", "png", "pdf")
# For other programs to open. All others go to standard output.
_FILES = ("html", "svg", "speedscope", *BINARY)


def add_arguments(parser: Parser) -> None:
    """Add the options for the output of a report."""
    parser.option(
        "-o, --output OUT",
        "write to this file, which is replaced only when the report is complete; - is standard output. Without -o, "
        f"{', '.join(_FILES)} go to a file next to the capture, and all other formats to standard output",
    )
    parser.option("--open", "open the report in a browser; without -o it is in a file next to the capture")
    parser.option(
        "--no-pager",
        "do not use PAGER (default: less) for a report that is longer than the terminal",
        dest="pager",
        action="store_false",
    )


def name(arguments: argparse.Namespace, capture: str, middle: str = "") -> None:
    """Choose the output if -o did not: formats for other programs, and reports that --open opens, go to a file next
    to this capture."""
    if arguments.output == STDOUT:
        if arguments.open:
            raise BadRequest("--open needs a file, and -o - is standard output", "leave one of them out")
        arguments.output = None
        if arguments.format in BINARY and sys.stdout.isatty():
            raise BadRequest(f"{arguments.format} cannot be shown on a terminal", "write it to a file with -o")
    elif arguments.output is None and (arguments.open or arguments.format in _FILES):
        arguments.output = _next_to(capture, middle + FILE_SUFFIXES[arguments.format])
        arguments.is_named_here = arguments.is_private = True


def _next_to(capture: str, suffix: str) -> str:
    """A file next to a capture; for a part of a merged capture (`all.hiw/NAME`), next to the merged file."""
    folder, last = os.path.split(capture.rstrip("/"))
    if os.path.isfile(folder):
        folder, last = os.path.splitext(folder)[0], last.replace(":", "-")
        return f"{folder}.{last}{suffix}"
    return os.path.splitext(capture.rstrip("/"))[0] + suffix


def finish(arguments: argparse.Namespace) -> None:
    """Name the file that was written, if -o did not, and open it if requested."""
    if getattr(arguments, "is_named_here", False):
        print(arguments.output)
    if arguments.open:
        import webbrowser

        webbrowser.open(Path(arguments.output).absolute().as_uri())


def refuse_to_open(arguments: argparse.Namespace, shown: Sequence[str]) -> None:
    """Raise BadRequest for --open with a format that no browser shows."""
    if arguments.open and arguments.format not in shown:
        raise BadRequest(f"--open needs {' or '.join(shown)}, and not {arguments.format}", "give --format html")


def refuse_to_replace(captures: Sequence[str], output: str | None) -> None:
    """Raise BadRequest if the output would replace a capture from which it is made."""
    sources = [*captures, *map(os.path.dirname, captures)]  # all.hiw/NAME is in all.hiw
    for source in sources if output is not None else ():
        with suppress(OSError):  # one of them does not exist, so they are not the same file
            if os.path.samefile(source, output or ""):
                raise BadRequest("the report would replace the capture it is made from", "give another file to -o")


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[TextIO]:
    """The stream for the report. A file appears or changes only when the report is complete."""
    try:
        if arguments.output is not None:
            with replacing(Path(arguments.output), is_private=getattr(arguments, "is_private", False)) as stream:
                yield stream
        elif arguments.format in FOR_PEOPLE and getattr(arguments, "pager", False) and sys.stdout.isatty():
            with pager.paged() as stream:
                yield stream
        else:
            yield _standard_output(arguments.format)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        where = arguments.output or "standard output"
        remedy = "make room or write elsewhere" if error.errno == errno.ENOSPC else "check the folder and its rights"
        raise OutputFailed(f"the report cannot be written to {where} ({error.strerror})", remedy) from error


def _standard_output(output_format: str) -> TextIO:
    """Standard output: text in the terminal's encoding, data always in UTF-8."""
    if output_format in FOR_PEOPLE:
        ascii_text.use(sys.stdout)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    return sys.stdout
