"""`pytorch_memlab.mem_reporter`."""

from __future__ import annotations

from hiwater.torch.classic_report import ClassicMemReporter as MemReporter

__all__ = ["MemReporter"]
