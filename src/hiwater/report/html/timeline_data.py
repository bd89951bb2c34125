"""The curves over time of a page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hiwater.capture import Capture
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Ints
from hiwater.report.formatting import printable
from hiwater.report.html import page_document as document
from hiwater.report.html.columns import PackedColumns

_MOST_SAMPLES = 6000  # of a timeline; with more, only the highest of neighbouring samples are kept


def timeline(capture: Capture, columns: PackedColumns) -> document.TimelineData:
    """Curves over time: resident memory, live bytes of each kind, devices, and watched processes."""
    line = capture.timeline
    reserved = line.kind_bytes["reserved"]
    of_device = () if capture.device is None else (reserved,)
    place = _highest_samples(line.resident_bytes, line.allocated_bytes, *of_device)
    series = []
    if capture.device is None:
        series.append(_curve("resident", "resident", columns, None, line.resident_bytes[place]))
    if not capture.is_timeline:
        series += [
            _curve(kind, "kind", columns, None, line.kind_bytes[kind][place])
            for kind in KINDS
            if (kind in COUNTED_KINDS[:3] and capture.device is None)
            or (line.kind_bytes[kind].any() and (kind != "reserved" or capture.device is None))
        ]
    if capture.device is not None and capture.reserved_peak_bytes is not None:
        series.append(_curve("reserved by the allocator", "reserved", columns, None, reserved[place]))
    for device in capture.devices:
        if len(device.at_ns):
            highest = _highest_samples(device.peaks_bytes)
            name, held = printable(f"{device.name} allocated", 60), np.maximum(0, device.peaks_bytes[highest])
            series.append(_curve(name, "device", columns, device.at_ns[highest], held))
    for process in capture.processes[1:]:
        own, name = _highest_samples(process.resident_bytes), f"{printable(process.name, 60)} {process.pid}"
        series.append(_curve(name, "process", columns, process.at_ns[own], process.resident_bytes[own]))
    at_ns = columns.add(line.at_ns[place])
    return {"at_ns": at_ns, "series": series, "points": len(line.at_ns), "limits": _limits(capture)}


def _limits(capture: Capture) -> list[document.LimitLine]:
    """The limits that were in force at the last reading."""
    found: list[document.LimitLine] = []
    for name, field in (("limit of the cgroup", "cgroup_limit"), ("limit of address space", "address_space_limit")):
        known = [limit for row in capture.pressure if (limit := getattr(row, field))]
        if known:
            found.append({"name": name, "bytes": known[-1]})
    return found


def _curve(
    name: str, group: document.SeriesGroup, columns: PackedColumns, at_ns: Ints | None, values: Ints
) -> document.Series:
    """One curve; `at_ns` is None if it has the timeline's times."""
    curve: document.Series = {"name": name, "group": group, "bytes": columns.add(values)}
    if at_ns is not None:
        curve["at_ns"] = columns.add(at_ns)
    return curve


def _highest_samples(*curves: Ints) -> npt.NDArray[np.int64]:
    """The indices of the samples that the page gets: all, or in each group of neighbours those at which a curve is
    highest."""
    length = len(curves[0])
    if length <= _MOST_SAMPLES:
        return np.arange(length)
    stretch = np.arange(length) * (_MOST_SAMPLES // (len(curves) + 1)) // length
    chosen = [np.array([0, length - 1])]
    for curve in curves:
        order = np.lexsort((-curve, stretch))
        chosen.append(order[np.flatnonzero(np.diff(stretch[order], prepend=-1))])
    return np.unique(np.concatenate(chosen))
