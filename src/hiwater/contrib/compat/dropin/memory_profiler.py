"""hiwater under memory_profiler's name: the same interface, the same reports.

Found by `PYTHONPATH="$(python -m hiwater.compat)"`. What differs, and why, is in docs/coming-from-memory-profiler.md.
"""

from __future__ import annotations

import sys

from hiwater import __version__
from hiwater.contrib.compat.memory_profiler.profiler import CodeMap, profile, show_results
from hiwater.contrib.compat.memory_profiler.profiler import CompatLineProfiler as LineProfiler
from hiwater.contrib.compat.memory_profiler.timestamps import LogFile, TimeStamper
from hiwater.sampling.backends import choose_backend
from hiwater.sampling.usage import memory_usage

__all__ = [
    "CodeMap", "LineProfiler", "LogFile", "TimeStamper", "__version__", "choose_backend", "load_ipython_extension",
    "memory_usage", "profile", "show_results",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in {"MemoryProfilerMagics", "MemitResult"}:  # these need IPython
        try:
            from hiwater.contrib.compat.memory_profiler import magics
        except ImportError as error:
            raise AttributeError(f"{name} needs IPython: {error}") from error
        return getattr(magics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: object) -> None:
    """Called by `%load_ext memory_profiler`."""
    from hiwater.contrib.compat.memory_profiler import magics

    magics.load_ipython_extension(ipython)


def _get_memory(
    pid: int,
    backend: str | None = None,
    timestamps: bool = False,
    include_children: bool = False,
    filename: str | None = None,  # noqa: ARG001 - only tracemalloc's users gave it
) -> object:
    """One reading in MiB, optionally with its time. Other packages call this, although it was never public."""
    return memory_usage(pid, timestamps=timestamps, include_children=include_children, backend=backend)[0]


if __name__ == "__main__":
    from hiwater.contrib.compat.memory_profiler.command import main

    sys.exit(main(sys.argv[1:]))
