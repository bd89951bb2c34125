"""`pytorch_memlab.line_profiler`."""

from __future__ import annotations

from hiwater.contrib.compat.pytorch_memlab.lines import DEFAULT_COLUMNS
from hiwater.contrib.compat.pytorch_memlab.lines import ClassicLineProfiler as LineProfiler
from hiwater.contrib.torch.line_decorators import clear_global_line_profiler, profile, profile_every, set_target_gpu

__all__ = [
    "DEFAULT_COLUMNS", "LineProfiler", "clear_global_line_profiler", "profile", "profile_every", "set_target_gpu",
]  # fmt: skip
