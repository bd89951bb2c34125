"""`pytorch_memlab.line_profiler.extension`: needs IPython."""

from __future__ import annotations

from hiwater.contrib.compat.pytorch_memlab.mlrun import MemlabMagics
from hiwater.contrib.compat.pytorch_memlab.mlrun import load_classic as load_ipython_extension

__all__ = ["MemlabMagics", "load_ipython_extension"]
