"""`filprofiler.api.profile`: records a call and writes Fil's reports."""

from __future__ import annotations

from hiwater.contrib.compat.fil import result_folder
from hiwater.recording.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeVar

    Result = TypeVar("Result")


def profile(code_to_profile: Callable[[], Result], path: str | os.PathLike[str]) -> Result:
    """Call `code_to_profile` without arguments, write the reports of its peak into the folder `path`, and return the
    result of the call.

    Works in every interpreter that hiwater can record, also one that `fil-profile python` did not start. The reports
    are also written if the call raises. No browser is opened. Raises OutputFailed, and the exceptions of
    `hiwater.record` and of the call.
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
