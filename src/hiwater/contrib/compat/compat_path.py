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


PARSER = {
    "description": (
        "Prints the folder of the modules that stand in for memory_profiler, mprof, filprofiler, ipygpulogger and pytorch_memlab. "
        "The commands mprof and fil-profile are in its folder bin."
    ),
    "epilog": """examples:
  PYTHONPATH="$(hiwater compat-path)" python script.py
  PYTHONPATH="$(hiwater compat-path)" python -m mprof run script.py
  PATH="$(hiwater compat-path)/bin:$PATH" mprof run script.py
  PATH="$(hiwater compat-path)/bin:$PATH" fil-profile run script.py
""",
}


def add_arguments(_: argparse.ArgumentParser) -> None:
    """This verb has no arguments."""


def run(_: argparse.Namespace) -> int:
    sys.stdout.write(folder() + "\n")
    return 0
