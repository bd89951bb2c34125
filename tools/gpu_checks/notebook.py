"""The figures of cells in a real kernel."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from gpu_checks.registry import HELPERS, IN_PLACE, MIB, Result, check

_DOUBLE = f"import sys; sys.path.insert(0, {str(HELPERS)!r})\nfrom cuda_double import install\nCUDA = install()"
_BEGIN = """import torch
from hiwater.contrib.compat.gpulogger import IPyGPULogger
torch.cuda.init()
logger = IPyGPULogger(compact=True).start()"""
_CELLS = (
    _BEGIN,
    f"kept = torch.cuda.caching_allocator_alloc({64 * MIB}, stream=0)",
    (
        f"torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc({32 * MIB}, stream=0))\n"
        "data = logger.data"
    ),
    "logger.stop()\nprint(data)",
)


@check("ipygpulogger's lines in a real kernel: what cells keep and need on the device", seconds=60)
def cells(folder: Path) -> Result:
    """One cell keeps 64 MiB, the next needs 32 MiB for a moment."""
    missing = [name for name in ("ipykernel", "nbclient") if find_spec(name) is None]
    if missing:
        return Result(None, {"not installed": ", ".join(missing)})
    sys.path.insert(0, str(HELPERS))
    import notebooks

    shown = notebooks.run(folder / "kernel", [*([_DOUBLE] if IN_PLACE else []), *_CELLS])
    lines = [" ".join(one.lines) or one.printed or one.error or "" for one in shown]
    kept, needed = lines[-3], lines[-2]
    return Result("64" in kept and "32" in needed, {"keeps 64 MiB": kept, "needs 32 MiB": needed, "data": lines[-1]})
