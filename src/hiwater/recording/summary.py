"""The lines at the end of a recording, and the warning if it is incomplete."""

from __future__ import annotations

import os

from hiwater._os import accuracy
from hiwater._os.headline import sentence
from hiwater._os.sizes import format_size
from hiwater.capture import destination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater._os.headline import TopLine
    from hiwater.recording.recorder import RefusedRequests, Summary


def summary_lines(summary: Summary, shown_path: str) -> list[str]:
    """Return the lines: a refused request if there was one, the two peaks, the line to change first, and the capture unless it is lost."""
    refused = summary["refused"]
    lines = [_refusals(refused)] if refused is not None else []
    lines += [_peaks(summary), _top_line(summary)]
    if not summary["is_lost"]:
        lines.append(f"capture {shown_path}: read it with `hiwater report {shown_path}`")
    return lines


def children_line(path: str) -> str | None:
    """Return the line about the children of the process whose capture is at `path`; None if it started no Python process."""
    folder = destination.folder_of_children(path)
    try:
        with open(os.path.join(folder, destination.CHILDREN_INDEX), encoding="ascii") as index:
            rows = [row for row in index if row.endswith("\n")]
        captures = {name.partition("-")[0] for name in os.listdir(folder) if name.endswith(".hiw")}
    except (OSError, ValueError):
        return None
    ended = [row for row in rows if _field(row, "event") == "ended"]
    recorded = captures | {_field(row, "pid") for row in ended}
    missing = [row for row in rows if _field(row, "event") == "started" and _field(row, "pid") not in recorded]
    count = len(captures) + sum(not _field(row, "capture") for row in ended)
    line = f"{count:,} child process{'' if count == 1 else 'es'} recorded, too, in {from_here(folder)}"
    if ended:
        peak, pid = max((int(_field(row, "peak_bytes")), _field(row, "pid")) for row in ended)
        line += f": the highest peak of those that ended is {_size(peak)}, of process {pid}"
    if missing:
        line += f"; {len(missing):,} not recorded, such as {_field(missing[0], 'program')} {_field(missing[0], 'why')}"
    return line.rstrip()


def _field(row: str, name: str) -> str:
    """Return a value of a row of the index. Not by the module json: the program may have one of its own."""
    value = row.partition(f'"{name}":')[2]
    return value[1:].partition('"')[0] if value.startswith('"') else value.partition(",")[0].rstrip().rstrip("}")


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
    allocated = "exact"
    if summary["lost_events"]:
        allocated = accuracy.LOST
    elif "calls_not_recorded" in summary["shortcomings"]:
        allocated = accuracy.MISSED
    elif summary["standard_error_bytes"]:
        allocated = accuracy.of_estimate(summary["standard_error_bytes"])
    resident = accuracy.of_peak(exact=summary["resident_exact"], error_bytes=summary["resident_error_bytes"])
    overhead = summary["overhead_bytes"]
    return (
        f"peak {_size(summary['peak_bytes'])} allocated ({allocated}, {summary['peak_blocks']:,} blocks), "
        f"{_size(max(0, summary['resident_peak_bytes'] - overhead))} resident ({resident})"
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


def _refusals(refused: RefusedRequests) -> str:
    times = "a request for memory was" if refused["count"] == 1 else f"{refused['count']:,} requests for memory were"
    last = "" if refused["count"] == 1 else "the last "
    return f"{times} refused, {last}of {_size(refused['bytes'])} at {_place(refused)}"


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
    """Return `path` relative to the current folder, where it is inside. In the root folder paths stay as they are: no shorter, and clearer."""
    try:
        here = os.getcwd()
    except OSError:
        return path
    return path if here == "/" else path.removeprefix(here + "/")
