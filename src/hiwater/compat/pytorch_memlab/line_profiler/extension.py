"""`pytorch_memlab.line_profiler.extension`: needs IPython."""

from __future__ import annotations

from hiwater.notebook.mlrun import MemlabMagics
from hiwater.notebook.mlrun import load_classic as load_ipython_extension

__all__ = ["MemlabMagics", "load_ipython_extension"]
