"""hiwater under pytorch_memlab's name: the same names and tables, sizes that are right, nothing reset, traced or printed by importing it.

Found by `PYTHONPATH="$(hiwater compat-path)"`. What differs, and why, is in docs/coming-from-pytorch-memlab.md.
"""

from __future__ import annotations

from hiwater.torch.classic_lines import ClassicLineProfiler as LineProfiler
from hiwater.torch.classic_report import ClassicMemReporter as MemReporter
from hiwater.torch.courtesy import Courtesy
from hiwater.torch.line_decorators import clear_global_line_profiler, profile, profile_every, set_target_gpu

__all__ = [
    "Courtesy", "LineProfiler", "MemReporter", "clear_global_line_profiler", "load_ipython_extension", "profile", "profile_every",
    "set_target_gpu",
]  # fmt: skip


def load_ipython_extension(ipython: object) -> None:
    """Called by `%load_ext pytorch_memlab`."""
    from hiwater.notebook import mlrun

    mlrun.load(ipython, LineProfiler)
