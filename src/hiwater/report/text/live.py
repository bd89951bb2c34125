"""The rows of `hiwater live`: the figures of what runs, and the table that the viewer chose. Each row is one line of
the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.text import Text

from hiwater._os.ownership import IMPORT_SYSTEM
from hiwater.analysis.live import LiveProcess, Row
from hiwater.analysis.live_all import AllProcesses
from hiwater.analysis.live_run import LiveRun
from hiwater.capture.paths import Frame
from hiwater.capture.run_index import process_count
from hiwater.report.formatting import (
    frame_text,
    place_text,
    printable,
    seconds,
    share,
    short_frame_text,
    signed_size,
    size,
)
from hiwater.report.live_views import View
from hiwater.report.text import processes, timeline

_CURVE_AT = 12  # columns before the curve
_FIGURES = 24  # columns of a row before its name
_FRAMES_SHOWN = 4
_SMALLEST_SOURCE = 16
MOST_ROWS = 100


@dataclass(frozen=True, slots=True)
class Shown:
    """What the viewer chose, and how wide the terminal is."""

    view: View
    growth: bool
    width: int


def figures(run: LiveRun, shown: Shown) -> list[Text]:
    """What is known at a glance: five rows, one more for a run of several processes, and one if something cannot be
    read."""
    process = run.shown
    peak, peak_ns = process.peak
    lines = [_title(run), _pair("allocated", process.allocated_bytes, peak, f"at {seconds(peak_ns)}")]
    lines.append(_pair("resident", process.resident_bytes, process.resident_peak_bytes, "without hiwater's tables"))
    curve = process.curve
    bars = timeline.bars(curve.at_ns, curve.bytes, max(20, shown.width - _CURVE_AT - 1)) if len(curve.at_ns) else ""
    lines.append(Text.assemble(f"{'over time':<{_CURVE_AT}}", (bars, "yellow")))
    if len(run.processes) > 1 or run.all.run.is_of_several:
        lines.append(Text(_all_processes(run), "cyan"))
    if problems := run.problems:
        others = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        lines.append(Text(f"{problems[0]}{others}", "red"))
    lines.append(_view_line(process, shown))
    return [_fitted(line, shown.width) for line in lines]


def _title(run: LiveRun) -> Text:
    process = run.shown
    if isinstance(process, LiveProcess):
        name, ended = f"process {process.pid}  {printable(process.command, 60)}", process.ended
        suspects = [f"; {words}" for words in process.suspects]
    else:
        name, ended, suspects = f"all processes of {printable(run.processes[0].command, 60)}", "", []
    state = "".join([f"  {ended or 'recording'}, {seconds(process.duration_ns)}", *suspects])
    return Text.assemble(("hiwater live", "bold cyan"), "  ", (name, "bold"), (state, "red" if ended else "green"))


def _pair(name: str, now: int, peak: int, remark: str) -> Text:
    return Text.assemble(
        f"{name:<{_CURVE_AT}}", (f"{size(now):>11}", "bold"), f" now {size(max(now, peak)):>11} peak  ", (remark, "dim")
    )  # fmt: skip


def _all_processes(run: LiveRun) -> str:
    together, running, count = run.all, len(run.all.running), len(run.all.run.short)
    how = _how_counted(together.shared_once, running)
    now = (
        f": {size(together.allocated_bytes)} allocated · {size(together.resident_bytes)} resident ({how})"
        if running
        else ""
    )
    others = f", {count:,} short {'child has' if count == 1 else 'children have'} ended" if count else ""
    others += f", {len(run.unrecorded):,} not recorded" if run.unrecorded else ""
    highest = f"{size(together.peak[0])} allocated, {size(together.resident_peak_bytes)} resident"
    return f"{running:,} of {process_count(run.processes):,} processes run{now}{others}; at most {highest} at once"


def _how_counted(shared: int, running: int) -> str:
    """How the pages that processes share count in a sum of their resident memory: once (PSS) or for each (RSS)."""
    if shared == running:
        return "PSS"
    return f"PSS of {shared:,}, RSS of {running - shared:,}" if shared else "RSS"


def _view_line(process: LiveProcess | AllProcesses, shown: Shown) -> Text:
    parts: list[tuple[str, str]] = []
    for view in View:
        style = "reverse bold" if view == shown.view else "dim"
        parts += [(" ", style), (view[0], f"{style} underline"), (f"{view[1:]} ", style)]
    if shown.view in (View.processes, View.devices):
        moment = ""
    elif not shown.growth:
        moment = "live bytes"
    elif process.marker_ns is None:
        moment = "growth since the start"
    else:
        moment = f"growth since {seconds(process.marker_ns)}"
    return Text.assemble(*parts, "  ", (moment, "bold"))


def rows(run: LiveRun, shown: Shown) -> Iterator[Text]:
    """The table that the viewer chose, at most 100 entries; a stack is several rows."""
    process = run.shown
    if shown.view == View.processes:
        found = _processes(run, shown)
    elif shown.view == View.devices:
        found = _devices(process, shown)
    elif shown.view == View.stacks:
        found = _stacks(process, shown)
    else:
        of_view = {View.lines: process.lines, View.threads: process.threads, View.kinds: process.kinds}[shown.view]
        found = _table(process, of_view(growth=shown.growth), shown)
    first = next(found, None)
    yield first if first is not None else Text(f"  {_nothing(shown)}", "dim")
    yield from found


def _nothing(shown: Shown) -> str:
    if shown.view == View.devices:
        return "no GPU or other device has been used"
    return "nothing has grown" if shown.growth else "nothing is allocated"


def _amount(count: int, whole: int, shown: Shown) -> str:
    return (
        f"{signed_size(count) if shown.growth else size(count):>12} {'' if shown.growth else share(count, whole):>8}  "
    )


def _table(process: LiveProcess | AllProcesses, found: Sequence[Row], shown: Shown) -> Iterator[Text]:
    folder, whole = process.folder, process.allocated_bytes
    room = shown.width - _FIGURES - 1
    names = [_name(row, folder, room if shown.width < 100 else room // 2) for row in found[:MOST_ROWS]]
    column = min(max((len(name) for row, name in zip(found, names, strict=False) if row.frame), default=0), room // 2)
    for row, name in zip(found, names, strict=False):
        source = process.source(row.frame) if row.frame is not None else ""
        left = room - max(len(name), column) - 2
        remark = printable(source, left) if source and left >= _SMALLEST_SOURCE else ""
        if row.frame is None and row.blocks is not None and left >= _SMALLEST_SOURCE:
            remark = f"{row.blocks:,} blocks"
        error = f" ± {size(row.standard_error_bytes)}" if row.standard_error_bytes else ""
        yield _fitted(
            Text.assemble(
                _amount(row.bytes, whole, shown), (f"{name:<{column}}", "bold"), (error, "yellow"), "  ",
                (remark, "italic yellow"),
            ),
            shown.width,
        )  # fmt: skip


def _name(row: Row, folder: str, longest: int) -> str:
    return place_text(row.frame, folder, longest) if row.frame is not None else printable(row.name, longest)


def _stacks(process: LiveProcess | AllProcesses, shown: Shown) -> Iterator[Text]:
    whole = process.allocated_bytes
    for stack in islice(process.stacks(growth=shown.growth), MOST_ROWS):
        what = f"{stack.kind} · {printable(stack.thread, 40) or 'no thread'} · {stack.blocks:,} blocks"
        yield _fitted(Text.assemble(_amount(stack.bytes, whole, shown), (what, "bold")), shown.width)
        frames = [frame for frame in stack.frames[::-1] if not frame.file.startswith(IMPORT_SYSTEM)]
        for frame in frames[:_FRAMES_SHOWN]:
            yield _frame(frame, shown)
        if len(frames) > _FRAMES_SHOWN:
            yield Text(f"{'':{_FIGURES}}… {len(frames) - _FRAMES_SHOWN} more", "dim")


def _frame(frame: Frame, shown: Shown) -> Text:
    room = shown.width - _FIGURES - 1
    return Text(" " * _FIGURES + (frame_text(frame, room) if shown.width >= 120 else short_frame_text(frame, room)))


def _processes(run: LiveRun, shown: Shown) -> Iterator[Text]:
    yield Text(f"{'pid':>9} {'allocated':>11} {'peak':>11} {'resident':>11} {'peak':>11}  ", "dim")
    for process in sorted(run.processes, key=lambda one: (not one.is_running, -one.allocated_bytes))[:MOST_ROWS]:
        sizes = (process.allocated_bytes, process.peak[0], process.resident_bytes, process.resident_peak_bytes)
        is_shown = "→" if process is run.shown else " "
        words = " ".join(filter(None, (process.ended, printable(process.command, 200))))
        line = f"{is_shown}{process.pid:>8} {' '.join(f'{size(count):>11}' for count in sizes)}  {words}"
        yield _fitted(Text(line, "dim" if process.ended else ""), shown.width)
    for note in processes.notes(run.all.run.short, run.unrecorded):
        yield _fitted(Text(f"  {note}", "dim"), shown.width)


def _devices(process: LiveProcess | AllProcesses, shown: Shown) -> Iterator[Text]:
    for device in process.devices():
        for quantity, peak in device.peaks():
            values = getattr(device, f"{quantity}_bytes")
            now = size(int(values[-1])) if len(values) and values[-1] >= 0 else "unknown"
            line = (
                f"  {printable(device.name, 20):<12} {printable(device.backend, 12):<12} {quantity:<10} {now:>11} now"
                f" {size(peak):>11} peak"
            )
            yield _fitted(Text(line), shown.width)


def _fitted(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line
