"""The command line: finds the verb and loads that one alone."""

from __future__ import annotations

import sys

from hiwater.cli import verbs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        # This verb alone starts in the program that is to be recorded: no argparse, which is half of a start-up.
        from hiwater.cli import run

        return run.main(arguments[1:])
    if arguments[:1] == ["sample"]:
        # What follows its `--` is a command with options of its own, which no parser of ours may touch.
        from hiwater.cli import sample

        return sample.main(arguments[1:])
    if arguments[:1] == ["lines"]:
        from hiwater.cli import lines  # the same for this one, where it runs a program

        return lines.main(arguments[1:])
    if arguments[:1] == ["courtesy"]:
        courtesy: Callable[[list[str]], int] = verbs.module_of("courtesy").main  # the same for this one
        return courtesy(arguments[1:])
    return verbs.main(arguments)
