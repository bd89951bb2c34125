# PYTHON_ARGCOMPLETE_OK: argcomplete's global activation looks for this word
"""The command line: finds the verb, and loads only its module."""

from __future__ import annotations

import os
import sys

from hiwater._os import code_overhead

if sys.argv[1:2] == ["run"]:
    code_overhead.note_start()  # before the modules that make up most of it

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name) and return the exit code."""
    if argv is None and "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow
        from hiwater.cli import completion

        return completion.answer()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        # This verb alone starts in the program that is to be recorded: no argparse, which is half of a start-up.
        from hiwater.cli import run

        return run.main(arguments[1:])
    if arguments[:1] == ["lines"]:
        from hiwater.cli import lines  # the same, where it runs a program

        return lines.main(arguments[1:])
    from hiwater.cli import verbs

    return verbs.main(arguments)
