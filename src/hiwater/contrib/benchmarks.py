"""Memory for benchmark suites: figures for pytest-benchmark's `extra_info`.

Each call is recorded whole, apart from the runs that are timed: recording takes time, and would be part of theirs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

_P = ParamSpec("_P")
_FIGURES = ("peak_bytes", "allocated_bytes", "kept_bytes", "allocations")


def memory_of(function: Callable[_P, object], *arguments: _P.args, **keywords: _P.kwargs) -> dict[str, int]:
    """Call `function` once, recorded, and return what the call came to.

    `peak_bytes` were allocated at its peak, above what was there before; `allocated_bytes` in `allocations` over the
    call; `kept_bytes` are still allocated when it has returned, among them what it returns. Raises what the function
    raises, and EngineUnavailable, EngineFailed or CaptureUnwritable if nothing can be recorded.
    """
    from hiwater.analysis.check import measured
    from hiwater.capture import open_run
    from hiwater.recording.record import record

    with tempfile.TemporaryDirectory(prefix="hiwater-") as folder:
        capture = Path(folder) / "call.hiw"
        with record(capture):
            result = function(*arguments, **keywords)
        del result  # kept until here: it is what the call kept
        figures = measured(open_run(capture)).entry.figures
    return {figure: figures[figure] for figure in _FIGURES}
