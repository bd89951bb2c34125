"""Names of other tools and of published code, for programs that use them.

`python -m hiwater.compat` prints the folder of the drop-in modules:

    # finds memory_profiler, mprof, filprofiler, ipygpulogger and pytorch_memlab
    PYTHONPATH="$(python -m hiwater.compat)" python script.py
    # the commands mprof and fil-profile
    PATH="$(python -m hiwater.compat)/bin:$PATH" mprof run script.py
"""

from __future__ import annotations

import hiwater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.compat.resource_tracker import MemoryMonitor, ResourceTracker
    from hiwater.sampling.usage import memory_usage

__all__ = ["MemoryMonitor", "ResourceTracker", "memory_usage"]

_HOMES = {
    "MemoryMonitor": "hiwater.contrib.compat.resource_tracker",
    "ResourceTracker": "hiwater.contrib.compat.resource_tracker",
    "memory_usage": "hiwater.sampling.usage",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(hiwater._hiwater_own_(_HOMES[name]), name)  # so that a recording does not count its modules
    globals()[name] = value
    return value


if __name__ == "__main__":
    from hiwater.contrib.compat.drop_ins import folder

    print(folder())
