"""`pytorch_memlab.line_profiler`."""

from __future__ import annotations

from hiwater.torch.classic_lines import DEFAULT_COLUMNS
from hiwater.torch.classic_lines import ClassicLineProfiler as LineProfiler
from hiwater.torch.line_decorators import clear_global_line_profiler, profile, profile_every, set_target_gpu

__all__ = [
    "DEFAULT_COLUMNS", "LineProfiler", "clear_global_line_profiler", "profile", "profile_every", "set_target_gpu",
]  # fmt: skip
