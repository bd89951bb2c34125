"""Memory for benchmark suites: figures for pytest-benchmark's `extra_info`, and benchmarks of asv.

Each call is recorded whole, apart from the runs that are timed: recording takes time, and would be part of theirs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, Protocol

from hiwater.errors import BadRequest

_P = ParamSpec("_P")
_UNITS = {"peak_bytes": "bytes", "allocated_bytes": "bytes", "kept_bytes": "bytes", "allocations": "allocations"}


class MemoryBenchmark(Protocol):
    """A benchmark of asv: a function that returns a number, which is in `unit`."""

    unit: str

    def __call__(self, *arguments: Any) -> int:
        """Return the figure of a call with asv's parameters."""
        ...


def memory_of(function: Callable[_P, object], *arguments: _P.args, **keywords: _P.kwargs) -> dict[str, int]:
    """Call `function` once, recorded, and return what the call came to.

    `peak_bytes` were allocated at its peak, above what was there before; `allocated_bytes` in `allocations` over the call; `kept_bytes` are still
    allocated when it has returned, among them what it returns. Raises what the function raises, and EngineUnavailable, EngineFailed or
    CaptureUnwritable if nothing can be recorded.
    """
    from hiwater.analysis.check import measured
    from hiwater.capture import open_run
    from hiwater.recording.recorder import record

    with tempfile.TemporaryDirectory(prefix="hiwater-") as folder:
        capture = Path(folder) / "call.hiw"
        with record(capture):
            result = function(*arguments, **keywords)
        del result  # kept until here: it is what the call kept
        figures = measured(open_run(capture)).entry.figures
    return {figure: figures[figure] for figure in _UNITS}


def memory_benchmark(function: Callable[..., object], figure: str = "peak_bytes") -> MemoryBenchmark:
    """A benchmark for asv that returns a figure of `memory_of(function, …)`; assign it to a name that begins with `track_`.

    asv lists it as `track_FUNCTION_FIGURE`. As an attribute of a class it is a method, with the attribute's name: `function` is called with the instance, then asv's parameters. Raises BadRequest for an unknown figure.
    """
    if figure not in _UNITS:
        raise BadRequest(f"{figure!r} is no figure of a call", f"choose one of {', '.join(_UNITS)}")

    def track(*arguments: Any) -> int:
        return memory_of(function, *arguments)[figure]

    name = getattr(function, "__name__", "")
    track.__name__ = f"track_{name if name.isidentifier() else 'call'}_{figure}"  # what asv calls it, outside classes
    track.unit = _UNITS[figure]  # type: ignore[attr-defined] # where asv looks for it
    return track  # type: ignore[return-value] # it has a unit now
