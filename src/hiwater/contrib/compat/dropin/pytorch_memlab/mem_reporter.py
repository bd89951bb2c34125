"""`pytorch_memlab.mem_reporter`."""

from __future__ import annotations

from hiwater.contrib.compat.pytorch_memlab.report import ClassicMemReporter as MemReporter

__all__ = ["MemReporter"]
