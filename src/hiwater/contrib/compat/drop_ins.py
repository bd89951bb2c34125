"""The folder of the drop-in modules, for PYTHONPATH."""

from __future__ import annotations

import os


def folder() -> str:
    """The folder with `memory_profiler`, `mprof`, `filprofiler`, `ipygpulogger` and `pytorch_memlab`; its `bin` has
    the commands."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "dropin")
