"""`filprofiler.api.profile`: a call recorded, with Fil's reports."""

from __future__ import annotations

from hiwater.contrib.compat.fil import result_folder
from hiwater.recording.recorder import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeVar

    Result = TypeVar("Result")


def profile(code_to_profile: Callable[[], Result], path: str | os.PathLike[str]) -> Result:
    """Call `code_to_profile` without arguments, write the reports of its peak into the folder `path`, and return what it returned.

    Works in every interpreter that hiwater can record, also one that was not started by `fil-profile python`. The reports are written
    also when the call raises; no browser is opened. Raises what `hiwater.record` raises, OutputFailed, and what the call raises.
    """
    import os

    folder = result_folder.made(os.fspath(path))
    capture = result_folder.capture_in(folder)
    try:
        with record(capture.replace("%", "%%")):
            return code_to_profile()
    finally:
        if os.path.exists(capture):
            result_folder.write_reports(capture, folder)
