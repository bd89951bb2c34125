"""`hiwater compat-path`: the folder of the drop-in modules, for PYTHONPATH."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def folder() -> str:
    """The folder with `memory_profiler`, `mprof`, `filprofiler`, `ipygpulogger` and `pytorch_memlab`; its `bin` has the commands."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "dropin")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb's parser."""
    import argparse

    subparsers.add_parser(
        "compat-path",
        help="print the folder of the drop-in modules",
        description=(
            "Prints the folder of the modules that stand in for memory_profiler, mprof, filprofiler, ipygpulogger and pytorch_memlab. "
            "The commands mprof and fil-profile are in its folder bin."
        ),
        epilog=(
            "examples:\n"
            '  PYTHONPATH="$(hiwater compat-path)" python script.py\n'
            '  PYTHONPATH="$(hiwater compat-path)" python -m mprof run script.py\n'
            '  PATH="$(hiwater compat-path)/bin:$PATH" mprof run script.py\n'
            '  PATH="$(hiwater compat-path)/bin:$PATH" fil-profile run script.py'
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(_: argparse.Namespace) -> int:
    sys.stdout.write(folder() + "\n")
    return 0
