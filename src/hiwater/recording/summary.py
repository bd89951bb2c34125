"""The lines at the end of a recording, and the warning if it is incomplete."""

from __future__ import annotations

import os

from hiwater._os import accuracy, destination
from hiwater._os.headline import refused_requests, sentence
from hiwater._os.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater._os.headline import TopLine
    from hiwater.recording.figures import RefusedRequests, Summary


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


def trouble(summary: Summary) -> str | None:
    """Return the warning about an incomplete recording, None for a complete one."""
    found = []
    if summary["stop_reason"]:
        found.append(f"recording stopped before the program did: {summary['stop_reason']}")
    if summary["lost_events"]:
        found.append(f"{summary['lost_events']:,} events were lost: the figures miss these allocations and frees")
    if summary["file_fate"]:
        found.append(summary["file_fate"])
    found += summary["shortcomings"].values()
    if summary["device_trouble"]:
        found.append(f"memory of devices was not measured to the end: {summary['device_trouble']}")
    if summary["driver_trouble"]:
        found.append(f"the GPU driver's figures are missing at the end: {summary['driver_trouble']}")
    return "warning: " + "; ".join(found) if found else None


def kept_in_memory(path: str) -> str:
    """Return the warning that the file system of `path` cannot map the capture."""
    return (
        f"warning: the file system of {path!r} cannot map files, so hiwater keeps the capture in memory and copies it"
        " there about every second and at the end; if the program is killed, the last second is lost: choose another"
        " file with -o to avoid this"
    )


def _peaks(summary: Summary) -> str:
    allocated = "exact"
    if summary["lost_events"]:
        allocated = accuracy.LOST
    elif "calls_not_recorded" in summary["shortcomings"]:
        allocated = accuracy.MISSED
    elif summary["standard_error_bytes"]:
        allocated = accuracy.of_estimate(summary["standard_error_bytes"])
    resident = f"resident memory {accuracy.NOT_MEASURED}"
    if summary["program_peak_bytes"]:
        exact = accuracy.of_peak(exact=summary["resident_exact"], error_bytes=summary["resident_error_bytes"])
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
