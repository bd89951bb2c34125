"""hiwater under mprof's name: `python -m mprof run script.py`, `python -m mprof plot` and the others."""

from __future__ import annotations

import sys

from hiwater.contrib.compat.memory_profiler.datfile import (
    filter_mprofile_mem_usage_by_function,
    function_labels,
    get_profile_filenames,
    read_mprofile_file,
)
from hiwater.contrib.compat.memory_profiler.mprof import (
    attach_action,
    clean_action,
    list_action,
    main,
    peak_action,
    plot_action,
    rm_action,
    run_action,
)

__all__ = [
    "attach_action", "clean_action", "filter_mprofile_mem_usage_by_function", "function_labels",
    "get_profile_filenames", "list_action", "main", "peak_action", "plot_action", "read_mprofile_file", "rm_action",
    "run_action",
]  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
