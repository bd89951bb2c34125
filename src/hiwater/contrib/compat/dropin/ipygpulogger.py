"""hiwater under ipygpulogger's name: the same class, figures that are right, no GPU needed.

Found by `PYTHONPATH="$(python -m hiwater.compat)"`. What differs, and why, is in docs/notebooks.md.
"""

from __future__ import annotations

from hiwater.contrib.compat.gpulogger import (
    IPyGPULogger,
    IPyGPULoggerData,
    IPyGPULoggerMemory,
    IPyGPULoggerTime,
    load_ipython_extension,
)

__all__ = [
    "IPyGPULogger", "IPyGPULoggerData", "IPyGPULoggerMemory", "IPyGPULoggerTime", "load_ipython_extension",
]  # fmt: skip
