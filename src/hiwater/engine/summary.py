"""The three lines a recording ends with."""

from __future__ import annotations

import os

from hiwater.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.engine.recorder import Summary


def summary_lines(summary: Summary, shown_path: str) -> list[str]:
    """Return the lines: the two peaks, the line that held most at the peak, the capture; more only if something went wrong."""
    lines = [
        _peaks(summary),
        _top_line(summary),
        f"capture {shown_path}: read it with `hiwater report {shown_path}`",
    ]
    if summary["stop_reason"]:
        lines.append(f"recording stopped before the program did: {summary['stop_reason']}")
    if summary["lost_events"]:
        lines.append(f"{summary['lost_events']:,} events were lost: figures are too low by what they held")
    return lines


def _peaks(summary: Summary) -> str:
    resident = "exact" if summary["resident_exact"] else f"± {format_size(summary['resident_error_bytes'])}"
    # A recording that dropped events knows its peak no better than that.
    allocated = "at least" if summary["lost_events"] else "exact"
    if summary["sample_bytes"] and not summary["lost_events"]:
        allocated = f"± {format_size(summary['standard_error_bytes'])}, sampled"
    return (
        f"peak {format_size(summary['peak_bytes'])} allocated ({allocated}, {summary['peak_blocks']:,} blocks), "
        f"{format_size(summary['resident_peak_bytes'])} resident ({resident})"
    )


def shown_path(path: str) -> str:
    """Return `path` as short as it can be typed where the program ended."""
    try:
        here = os.getcwd()
    except OSError:
        return path
    return path[len(here) + 1 :] if os.path.dirname(path) == here else path


def _top_line(summary: Summary) -> str:
    top = summary["top_line"]
    if top is None:
        return "most at the peak: no line of the program's own code held anything"
    file, line, function, held = top
    return f"most at the peak: {format_size(held)} at {file}:{line} in {function}"
