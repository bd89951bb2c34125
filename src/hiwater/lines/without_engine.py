"""The engine's functions for lines in Python, for builds and platforms without the engine.

They measure only resident memory, with the resident meter. There is no `heap_open`: allocations cannot be counted.
"""

import sys

from hiwater.lines.python_recorder import LineRecorder, lines_on_exit, lines_on_line, lines_on_resume

__all__ = ["LineRecorder", "lines_on_exit", "lines_on_line", "lines_on_resume"]

if sys.version_info >= (3, 12):
    from hiwater.lines.python_events import callbacks as lines_callbacks

    __all__ += ["lines_callbacks"]
else:
    from hiwater.lines.python_events import attach_all as lines_attach_all
    from hiwater.lines.python_events import attach_here as lines_attach_here
    from hiwater.lines.python_events import detach_all as lines_detach_all
    from hiwater.lines.python_events import detach_here as lines_detach_here
    from hiwater.lines.python_events import displaced as lines_displaced
    from hiwater.lines.python_events import join as lines_join

    __all__ += [
        "lines_attach_all",
        "lines_attach_here",
        "lines_detach_all",
        "lines_detach_here",
        "lines_displaced",
        "lines_join",
    ]
