"""The data of a plot: curves over time, named spans, and the peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hiwater.capture import Capture, WatchedProcess

Floats = npt.NDArray[np.float64]
MOST_CHILDREN = 12  # with curves of their own; the sum includes all


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """`kind` is "resident", "allocated", "device", "child" or "sum". Seconds since the start of the recording, and
    bytes."""

    label: str
    kind: str
    seconds: Floats
    bytes: Floats

    @property
    def peak(self) -> tuple[float, float]:
        """The highest point: (seconds, bytes)."""
        place = int(np.argmax(self.bytes))
        return float(self.seconds[place]), float(self.bytes[place])


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval in seconds; `depth` is the number of spans around it."""

    name: str
    start: float
    end: float
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Plot:
    """The plot of one recording; `time_words` labels the axis of time."""

    title: str
    curves: tuple[Curve, ...]
    spans: tuple[Span, ...] = ()
    time_words: str = "seconds since the start"

    @property
    def seconds(self) -> float:
        return max((float(curve.seconds[-1]) for curve in self.curves if len(curve.seconds)), default=0.0)


def plot_of(capture: Capture, title: str) -> Plot:
    timeline = capture.timeline
    at = timeline.at_ns / 1e9
    curves = [Curve("resident", "resident", at, timeline.resident_bytes.astype(np.float64))]
    if capture.device is not None:
        curves = [Curve("reserved", "resident", at, timeline.kind_bytes["reserved"].astype(np.float64))]
    if not capture.is_timeline:
        curves.append(Curve("allocated", "allocated", at, timeline.allocated_bytes.astype(np.float64)))
    curves += [
        Curve(f"{device.name} allocated", "device", device.at_ns / 1e9, device.peaks_bytes.astype(np.float64))
        for device in capture.devices
        if device.peak_allocated_bytes is not None
    ]
    below = [process for process in capture.processes[1:] if len(process.at_ns)]
    if below:
        curves.append(_sum(capture.processes))
        highest = sorted(below, key=lambda process: -process.peak_bytes)[:MOST_CHILDREN]
        curves += [
            Curve(f"{one.name} {one.pid}", "child", one.at_ns / 1e9, one.resident_bytes.astype(np.float64))
            for one in sorted(highest, key=lambda process: process.start_ns)
        ]
    spans = tuple(Span(scope.name, scope.start_ns / 1e9, scope.end_ns / 1e9, scope.depth) for scope in capture.scopes)
    return Plot(title, tuple(curve for curve in curves if len(curve.seconds)), spans)


def _sum(processes: Sequence[WatchedProcess]) -> Curve:
    """The sum over all processes after each sample: the last sample of a process counts until its next one, or its
    end."""
    times, changes = [], []
    for process in processes:
        if not len(process.at_ns):
            continue
        times.append(process.at_ns)
        changes.append(np.diff(process.resident_bytes, prepend=0))
        if process.end_ns is not None:
            times.append(np.array([max(process.end_ns, int(process.at_ns[-1]))]))
            changes.append(np.array([-int(process.resident_bytes[-1])]))
    at, change = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    total = np.cumsum(change[order]).astype(np.float64)
    return Curve("all processes (sum, shared pages count for each)", "sum", at[order] / 1e9, total)


def window(shown: Plot, start: float, end: float) -> Plot:
    """The part between two times, in seconds."""
    curves = []
    for curve in shown.curves:
        inside = (curve.seconds >= start) & (curve.seconds <= end)
        if inside.any():
            curves.append(replace(curve, seconds=curve.seconds[inside], bytes=curve.bytes[inside]))
    spans = tuple(
        replace(span, start=max(start, span.start), end=min(end, span.end))
        for span in shown.spans
        if span.end >= start and span.start <= end
    )
    return replace(shown, curves=tuple(curves), spans=spans)
