"""`hiwater merge`: puts many captures into one file, each unchanged.

Exits with 0, with 2 for a capture that cannot be read (one of a child is left out, and a warning says so), with 125
when the merged one cannot be written.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hiwater.cli import progress
from hiwater.cli.messages import say
from hiwater.cli.parsing import Parser

if TYPE_CHECKING:
    from hiwater.analysis.symbols import names_file

PARSER = {
    "description": (
        "Puts many captures into one file and does not change them: each process, rank and machine keeps its own."
    ),
    "epilog": """examples:
  hiwater merge -o job.hiw run.*.hiw         all ranks of a job in one file
  hiwater merge -o job.hiw job/              the same for a folder with the captures of a job
  hiwater report job.hiw                     the peaks of all processes, highest first, and their memory at one instant
  hiwater merge -o job.hiw job.hiw late.hiw  add one more capture
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "captures",
        metavar="CAPTURE",
        nargs="+",
        help="a capture, a merged capture, a run of several processes, or the folder of a job",
    )
    parser.option("-o, --output OUT", "the merged capture", required=True)
    parser.option("-q, --quiet", "print errors only")


def run(arguments: argparse.Namespace) -> int:
    """Merge, and return the exit code. Raises HiwaterError."""
    with progress.shown(f"merging into {arguments.output}"):
        count, warnings = _merge(arguments.captures, arguments.output)
    for warning in warnings:
        say(f"warning: {warning}")
    if not arguments.quiet:
        output = arguments.output
        say(f"merged {count} capture{'' if count == 1 else 's'} into {output}: read it with `hiwater report {output}`")
    return 0


def _merge(paths: list[str], output: str) -> tuple[int, list[str]]:
    """How many captures there are now in `output`, and what went wrong besides."""
    from hiwater._os import destination
    from hiwater.analysis.symbols import names_file
    from hiwater.capture import packing, run_index
    from hiwater.capture.run_index import Row
    from hiwater.cli.report import naming

    path_of_output = destination.absolute(output)
    destination.check(path_of_output)
    names = _native_names(paths)
    packed, rows = list[packing.Packed](), list[Row]()
    for path in paths:
        with naming(path):
            captures, of_index = packing.pack(path)
        packed += captures
        rows += of_index
    count = packing.write_file(packed, rows, path_of_output)
    warnings = [f"a capture cannot be read and is not in {output}: {problem}" for problem in run_index.unreadable(rows)]
    if names:
        symbols = names_file.symbols_path(Path(path_of_output))
        try:
            names_file.write(symbols, names)
        except OSError as error:
            warnings.append(f"names of native functions cannot be written to {str(symbols)!r} ({error.strerror})")
    return count, warnings


def _native_names(paths: list[str]) -> dict[str, names_file.ModuleNames]:
    """What `hiwater symbolize` has found out for the captures at these paths."""
    from hiwater.analysis.symbols import names_file
    from hiwater.capture import run_folder

    return names_file.with_captures(capture for path in paths for capture in run_folder.of_job(path) or [Path(path)])
