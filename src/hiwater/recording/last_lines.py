"""The last lines of `hiwater run`: the two peaks, the line to change first, and the capture.

The process writes them itself, unless they are about a run of several processes, or a signal ends it. Then another
process reads the captures and writes the first lines of their report (`hiwater.cli.last_lines`). The engine starts it
at the end of the process (native/session/last_lines.h). A process that the first one of the run became by an exec does
the same.
"""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater._os import destination, native, sizes
from hiwater._os.headline import refused_requests, sentence
from hiwater._os.native import unrecorded
from hiwater._os.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater._os.headline import TopLine
    from hiwater.recording.figures import RefusedRequests, Summary

_MOST_CAPTURES = 200
_CODE = """\
import sys
sys.path += [path for path in sys.argv[2].split(":") if path not in sys.path]
from hiwater.cli import last_lines
last_lines.main(sys.argv[1], int(sys.argv[3]))
"""


def begin(capture: str) -> None:
    """Have the last lines written if a signal ends this process. `capture` is that of the first process of the run."""
    unrecorded(_begin, capture, None)


def _begin(capture: str, _: None) -> None:
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(hiwater.__file__))), *sys.path]
    paths = ":".join(path for path in folders if _is_absolute(path))
    command = [sys.executable, "-I", "-c", _CODE, capture, paths] if _is_absolute(sys.executable) else []
    native.load().set_last_lines(command)


def _is_absolute(path: object) -> bool:
    """Whether it is the name of a file that can be given to a program. `sys.path` may have anything."""
    return isinstance(path, str) and os.path.isabs(path) and path.encode("utf-8", "ignore").decode() == path


def write(capture: str) -> bool:
    """Have them written now, and return whether they were. Of very many processes they are not: to read all captures
    takes longer than a program may wait at its end."""
    if _others(capture) > _MOST_CAPTURES:
        return False
    begin(capture)
    return bool(native.load().write_last_lines())


def are_about_several(capture: str) -> bool:
    """Whether processes beside the first one left something."""
    return _others(capture) > 0


def _others(capture: str) -> int:
    try:
        return len(os.listdir(destination.folder_of_children(capture)))
    except OSError:
        return 0


def summary_lines(summary: Summary, shown_path: str) -> list[str]:
    """Return the lines: a refused request if there was one, the two peaks, the line to change first, and the capture
    unless it is lost."""
    return figure_lines(summary) + ([] if summary["is_lost"] else [capture_line(shown_path)])


def figure_lines(summary: Summary) -> list[str]:
    """Return the lines without the capture."""
    refused = summary["refused"]
    lines = [refused_requests(refused["count"], refused["bytes"], _place(refused))] if refused is not None else []
    return [*lines, _peaks(summary), _top_line(summary)]


def capture_line(shown_path: str) -> str:
    """Return the line with the path of the capture."""
    return f"capture {shown_path}: read it with `hiwater report {shown_path}`"


def alone_line(path: str) -> str:
    """Return the line that follows those of the first process where nothing could be said of the others."""
    return (
        "these figures are of the first process alone: the others are in"
        f" {from_here(destination.folder_of_children(path))}"
    )


def _peaks(summary: Summary) -> str:
    allocated = "exact"
    if summary["lost_events"]:
        allocated = sizes.LOST
    elif "calls_not_recorded" in summary["shortcomings"]:
        allocated = sizes.MISSED
    elif summary["standard_error_bytes"]:
        allocated = sizes.accuracy_of_estimate(summary["standard_error_bytes"])
    resident = f"resident memory {sizes.NOT_MEASURED}"
    if summary["program_peak_bytes"]:
        exact = sizes.accuracy_of_peak(exact=summary["resident_exact"], error_bytes=summary["resident_error_bytes"])
        resident = f"{_size(summary['program_peak_bytes'])} resident ({exact})"
    overhead = summary["overhead_bytes"]
    return (
        f"peak {_size(summary['peak_bytes'])} allocated ({allocated}, {summary['peak_blocks']:,} blocks), "
        + resident
        + (f" and {_size(overhead)} overhead of hiwater" if overhead else "")
        + "".join(f", {_device(device)}" for device in summary["devices"])
    )


def _size(count: int) -> str:
    """Return a size with as many digits as in reports."""
    return format_size(count, 1)


def _device(device: dict[str, Any]) -> str:
    least = "" if device["exact"] else "at least "
    figures = [(name, device[f"peak_{name}_bytes"]) for name in ("allocated", "reserved", "used")]
    return f"{device['name']} {least}" + " / ".join(f"{_size(size)} {name}" for name, size in figures if size >= 0)


def _top_line(summary: Summary) -> str:
    """The first line of the report."""
    top, whole = summary["top_line"], summary["peak_bytes"]
    return "".join(sentence(f"{_size(whole)} allocated at the peak", top, "" if top is None else _place(top), whole))


def _place(at: TopLine | RefusedRequests) -> str:
    """Return the line, with its file as it can be typed where the program ended."""
    if not at["line"]:
        return at["function"]
    return f"{from_here(at['file'])}:{at['line']} in {at['function']}"


def from_here(path: str) -> str:
    """Return `path` relative to the current folder, where it is inside. In the root folder paths stay as they are:
    no shorter, and clearer."""
    try:
        here = os.getcwd()
    except OSError:
        return path
    return path if here == "/" else path.removeprefix(here + "/")
