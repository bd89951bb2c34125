"""hiwater under pytorch_memlab's name: the same names and tables, sizes that are right, nothing reset, traced or
printed by importing it.

Found by `PYTHONPATH="$(python -m hiwater.compat)"`. What differs, and why, is in docs/coming-from-pytorch-memlab.md.
"""

from __future__ import annotations

from hiwater.contrib.compat.pytorch_memlab.lines import ClassicLineProfiler as LineProfiler
from hiwater.contrib.compat.pytorch_memlab.report import ClassicMemReporter as MemReporter
from hiwater.contrib.torch.courtesy import Courtesy
from hiwater.contrib.torch.line_decorators import clear_global_line_profiler, profile, profile_every, set_target_gpu

__all__ = [
    "Courtesy", "LineProfiler", "MemReporter", "clear_global_line_profiler", "load_ipython_extension", "profile",
    "profile_every", "set_target_gpu",
]  # fmt: skip


def load_ipython_extension(ipython: object) -> None:
    """Called by `%load_ext pytorch_memlab`."""
    from hiwater.contrib.compat.pytorch_memlab import mlrun

    mlrun.load(ipython, LineProfiler)
