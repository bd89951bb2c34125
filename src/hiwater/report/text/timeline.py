"""What a timeline says in words: the processes that were watched, their peaks, and the scopes they told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TextIO

import numpy as np
from rich.text import Text

from hiwater.capture import Capture, ScopeSpan, WatchedProcess
from hiwater.capture.paths import Ints
from hiwater.capture.tables import whole_number
from hiwater.report.formatting import printable, seconds, size
from hiwater.report.request import Report
from hiwater.report.text.peak import at_start_and_end, resident_peak
from hiwater.report.text.terminal import Page, program, title

_BARS = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 26  # columns before a curve
_WIDEST, _WIDEST_LINE = 160, 100


def write(report: Report, stream: TextIO, stacks: Callable[[Report, Page], Iterator[Text]]) -> None:
    """Write the lines that `stacks` makes of a capture; of one that holds a timeline and no stacks, the report of a
    timeline."""
    page = Page(stream, report.capture.facts.get("cwd", ""))
    for line in (_lines if report.capture.is_timeline else stacks)(report, page):
        page.show(line)


def _lines(report: Report, page: Page) -> Iterator[Text]:
    capture = report.capture
    yield program(report, page)
    yield Text(f"{report.ending_words} · watched from outside", "dim")
    yield title("Peak")
    yield resident_peak(report)
    yield at_start_and_end(report)
    together = whole_number(capture.facts.get("sum_peak_bytes", ""))
    if len(capture.processes) > 1 and together is not None:
        yield Text(f"  all at once {size(together):>10}  a sum: pages that processes share count for each")
    yield from over_time(capture, page.width)
    yield from _processes(capture.processes, report.top, page.width)
    yield from scope_lines(capture, report.top, page.width)
    yield from _notes(capture)


def in_one_line(capture: Capture, width: int) -> Iterator[Text]:
    """What was allocated over time, in one line; nothing where it is not known."""
    timeline = capture.timeline
    if len(timeline) < 2:
        return
    columns = max(20, min(width, _WIDEST_LINE) - _LABEL_WIDTH)
    curve = bars(timeline.at_ns, timeline.allocated_bytes, columns)
    span = int(timeline.at_ns[-1] - timeline.at_ns[0])
    yield Text.assemble(f"  {'over time':<10} {seconds(span):>11}  ", (curve, "yellow"))


def over_time(capture: Capture, width: int) -> Iterator[Text]:
    """Memory over time, a line a curve, as wide as there is room; nothing where less than two points are known."""
    timeline = capture.timeline
    if len(timeline) < 2:
        return
    columns = max(20, min(width, _WIDEST) - _LABEL_WIDTH)
    curves = [("resident", timeline.resident_bytes)]
    if capture.device is not None:
        curves = [("reserved", timeline.kind_bytes["reserved"])] if capture.reserved_peak_bytes else []
    if not capture.is_timeline:
        curves.insert(0, ("allocated", timeline.allocated_bytes))
    highest = max(int(held.max()) for _, held in curves)
    span = f"{seconds(int(timeline.at_ns[0]))} – {seconds(int(timeline.at_ns[-1]))}, the highest sample of each column"
    yield Text.assemble("\n", ("Over time", "bold"), (f"  {span}", "dim"))
    for label, held in curves:
        bars = _bars(_levels(timeline.at_ns, held, columns, highest))
        yield Text.assemble(
            f"  {label:<10} {size(int(held.max())):>11}  ", (bars, "yellow" if label == "allocated" else "cyan")
        )
    yield from _devices_over_time(capture, columns)


def _devices_over_time(capture: Capture, columns: int) -> Iterator[Text]:
    """A line for each device, each as high as its own peak: they are other memory than the process's."""
    span = (int(capture.timeline.at_ns[0]), int(capture.timeline.at_ns[-1]))
    for device in capture.devices:
        if device.peak_allocated_bytes is None or not len(device.at_ns):
            continue
        levels = _levels(device.at_ns, device.peaks_bytes, columns, device.peak_allocated_bytes, span)
        yield Text.assemble(
            f"  {printable(device.name, 10):<10} {size(device.peak_allocated_bytes):>11}  ", (_bars(levels), "green")
        )


def bars(at_ns: Ints, held: Ints, columns: int) -> str:
    """A curve as one line of bars, the highest of them full."""
    return _bars(_levels(at_ns, held, columns, int(held.max())))


def _bars(levels: list[int]) -> str:
    return "".join(_BARS[level] for level in levels)


def _levels(at_ns: Ints, held: Ints, columns: int, highest: int, span: tuple[int, int] | None = None) -> list[int]:
    """For each column how high its highest sample is, in eighths; a column without one is as high as what came
    before it, and before the first one nothing is. `span` is what the columns stand for, by default from the first
    sample to the last."""
    first, last_ns = span or (int(at_ns[0]), int(at_ns[-1]))
    column = np.clip((at_ns - first) * (columns - 1) // max(1, last_ns - first), 0, columns - 1)
    tops = np.full(columns, -1, np.int64)
    np.maximum.at(tops, column, held)
    last = np.maximum.accumulate(np.where(tops >= 0, np.arange(columns), 0))
    highest = max(1, highest)  # of a damaged capture not the highest of `held`
    levels: list[int] = (np.clip(tops[last] / highest, 0, 1) * (len(_BARS) - 1)).astype(np.int64).tolist()
    return levels


def _processes(processes: tuple[WatchedProcess, ...], top: int, width: int) -> Iterator[Text]:
    if not processes:
        return
    yield Text(f"\nProcesses  {len(processes):,}, highest first", "bold")
    for process in sorted(processes, key=lambda one: -one.peak_bytes)[:top]:
        peak = f"{size(process.peak_bytes):>11}" if process.peak_bytes else f"{'too short':>11}"
        end = "runs" if process.end_ns is None else seconds(process.end_ns)
        command = printable(" ".join(process.command) or process.name, max(24, width - 50))
        yield Text(f"  {peak}  {process.pid:>7}  {seconds(process.start_ns)} – {end}  {command}{_status(process)}")
    if len(processes) > top:
        yield Text(f"  … and {len(processes) - top:,} more", "dim")


def _status(process: WatchedProcess) -> str:
    if not process.exit_status:
        return ""
    return f"  (signal {-process.exit_status})" if process.exit_status < 0 else f"  (exit code {process.exit_status})"


def scope_lines(capture: Capture, top: int, width: int) -> Iterator[Text]:
    """The scopes, longest first; nothing where there are none."""
    scopes = [scope for scope in capture.scopes if scope.allocated_peak_bytes is None]  # the others are phases
    if not scopes:
        return
    yield Text(f"\nScopes  {len(scopes):,}, longest first", "bold")
    for scope in sorted(scopes, key=lambda one: one.start_ns - one.end_ns)[:top]:
        yield Text(
            f"  {seconds(scope.start_ns)} – {seconds(scope.end_ns)} "
            f" {_sizes(scope)}{printable(scope.name, max(24, width - 90))}  (process {scope.pid})"
        )


def _sizes(scope: ScopeSpan) -> str:
    known = [
        f"{word} {size(count)}"
        for word, count in (("from", scope.start_bytes), ("to", scope.end_bytes), ("peak", scope.peak_bytes))
        if count is not None
    ]
    return " ".join(known) + "  " if known else ""


def _notes(capture: Capture) -> Iterator[Text]:
    if capture.facts.get("children_found_by", "") == "a search at every tick":
        yield Text("\n  ! children that lived between two samples were not seen", "yellow")
    if missed := whole_number(capture.facts.get("missed_ticks", "")):
        yield Text(f"\n  ! {missed:,} samples were missed: the machine was busy", "yellow")
