"""The line profiler with the sizes of pytorch_memlab's tables, for the drop-in module."""

from __future__ import annotations

from hiwater.contrib.compat.pytorch_memlab.report import classic_size
from hiwater.contrib.torch import line_decorators
from hiwater.contrib.torch.lines import DEFAULT_COLUMNS, LineProfiler

__all__ = ["DEFAULT_COLUMNS", "ClassicLineProfiler", "global_line_profiler"]


class ClassicLineProfiler(LineProfiler):
    """`hiwater.contrib.torch.LineProfiler` with sizes such as `40.00K`."""

    @staticmethod
    def _size(count: int) -> str:
        return classic_size(count)


line_decorators.use(ClassicLineProfiler)
global_line_profiler = line_decorators.global_line_profiler
