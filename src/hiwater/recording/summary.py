"""The three lines at the end of a recording, and the warning if it is incomplete."""

from __future__ import annotations

import os

from hiwater._os.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.recording.recorder import Summary


def summary_lines(summary: Summary, shown_path: str) -> list[str]:
    """Return the lines: the two peaks, the line with the most bytes at the peak, and the capture unless it is lost."""
    lines = [_peaks(summary), _top_line(summary)]
    if not summary["is_lost"]:
        lines.append(f"capture {shown_path}: read it with `hiwater report {shown_path}`")
    return lines


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
        f"warning: the file system of {path!r} cannot map files, so hiwater keeps the capture in memory and copies it there about every "
        "second and at the end; if the program is killed, the last second is lost: choose another file with -o to avoid this"
    )


def _peaks(summary: Summary) -> str:
    resident = "exact" if summary["resident_exact"] else f"± {format_size(summary['resident_error_bytes'])}"
    # If events were lost, the peak is a lower bound.
    is_least = summary["lost_events"] or "calls_not_recorded" in summary["shortcomings"]
    allocated = "at least" if is_least else "exact"
    if summary["sample_bytes"] and not is_least:
        allocated = f"± {format_size(summary['standard_error_bytes'])}, sampled"
    return (
        f"peak {format_size(summary['peak_bytes'])} allocated ({allocated}, {summary['peak_blocks']:,} blocks), "
        f"{format_size(summary['resident_peak_bytes'])} resident ({resident})"
        + "".join(f", {_device(device)}" for device in summary["devices"])
    )


def _device(device: dict[str, Any]) -> str:
    least = "" if device["exact"] else "at least "
    figures = [(name, device[f"peak_{name}_bytes"]) for name in ("allocated", "reserved", "used")]
    return f"{device['name']} {least}" + " / ".join(
        f"{format_size(size)} {name}" for name, size in figures if size >= 0
    )


def shown_path(path: str) -> str:
    """Return `path`, relative to the current folder if it is in there."""
    try:
        here = os.getcwd()
    except OSError:
        return path
    return path[len(here) + 1 :] if os.path.dirname(path) == here else path


def _top_line(summary: Summary) -> str:
    top = summary["top_line"]
    if top is None:
        return "most at the peak: no line of the program's code had live bytes"
    file, line, function, size = top
    return f"most at the peak: {format_size(size)} at {file}:{line} in {function}"
