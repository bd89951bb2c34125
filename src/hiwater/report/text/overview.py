"""The short report, at most 40 lines: the peak, the user's own lines that hold it, warnings, and the options for
more."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.text import Text

from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import Ranking, rank_lines
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.limits import suspects
from hiwater.report.formatting import printable, seconds, share, size
from hiwater.report.headline import headline
from hiwater.report.request import Report
from hiwater.report.text import device_history, devices, limits, phases, ranked, terminal, timeline
from hiwater.report.text.notes import notes
from hiwater.report.text.peak import allocated_peak, resident_peak
from hiwater.report.text.terminal import Page, title

_KIND_NAMES = {
    "python": "Python",
    "native": "native heap",
    "mapping": "mappings",
    "device": "device",
    "shared": "shared memory",
}
_SMALLEST_SHARE = 1000
_DEVICES_SHOWN, _ADVICE_SHOWN, _NOTES_SHOWN, _LONGEST_NOTE = 3, 2, 4, 300
_NEXT = (
    ("--stacks", "the stacks that hold most"),
    ("--tree", "the call tree"),
    ("--html --open", "a page with everything, in the browser"),
    ("--full", "every figure and table"),
)


def write(report: Report, stream: TextIO) -> None:
    """Write the short report. `full.write()` writes everything."""
    timeline.write(report, stream, _report)


def _report(report: Report, page: Page) -> Iterator[Text]:
    capture = report.capture
    sources, ranking = Sources.of(capture.tables), rank_lines(capture.tables, report.holdings)
    if capture.device is not None:
        yield from device_history.head(report, page)
    else:
        yield terminal.program(report, page)
    yield from limits.refused_in_brief(report)
    yield from device_history.refused(capture)
    yield Text(headline(report, ranking, page.folder), "bold")
    yield from _figures(report, page)
    yield from _held(report, ranking, sources, page)
    yield from phases.in_brief(capture)
    yield from ranked.advice(capture, page, _ADVICE_SHOWN)
    yield from _notes([*notes(report, sources), *suspects(capture.tables)])
    yield from _next(report)


def _figures(report: Report, page: Page) -> Iterator[Text]:
    """The peaks with how exact they are, memory over time in one line, and the kinds of memory in one."""
    capture, snapshot = report.capture, report.snapshot
    if capture.device is None:
        yield Text(f"{report.process_words} · {report.mode_words}", "dim")
        yield from terminal.own_code(report)
    yield title("Peak")
    yield allocated_peak(report)
    if capture.device is None:
        yield resident_peak(report)
    shown = list(devices.peaks(report))
    yield from shown[:_DEVICES_SHOWN]
    if len(shown) > _DEVICES_SHOWN:
        yield Text(f"  … and {len(shown) - _DEVICES_SHOWN:,} more devices", "dim")
    for device in capture.readable_histories[:_DEVICES_SHOWN] if capture.device is None else ():
        name = printable(device.device or "", 10)
        yield Text(
            f"  {name:<10} {size(device.peak.allocated_bytes):>11}  at its peak, at {seconds(device.peak.at_ns)} ·"
            " `--kind device` shows more"
        )
    yield Text(
        f"  at the end {size(capture.end.allocated_bytes):>11}  still allocated in {capture.end.allocated_blocks:,}"
        " blocks"
    )
    yield from timeline.in_one_line(capture, page.width)
    kinds, whole = snapshot.kind_bytes(), snapshot.allocated_bytes
    held = sorted(
        (kind for kind in COUNTED_KINDS if kinds[kind] * _SMALLEST_SHARE >= whole > 0), key=lambda kind: -kinds[kind]
    )
    if len(held) > 1:
        kinds_text = " · ".join(
            f"{_KIND_NAMES[kind]} {size(kinds[kind])} ({share(kinds[kind], whole)})" for kind in held
        )
        yield Text(f"  {'by kind':<10} {'':>11}  {kinds_text}")


def _held(report: Report, ranking: Ranking, sources: Sources, page: Page) -> Iterator[Text]:
    """The rows of the grouping that `--by` names; lines by default."""
    if report.by is None:
        yield from ranked.brief_lines(report, ranking, sources, page)
    elif report.by == Grouping.stack:
        yield from ranked.stacks(report, sources, page)
    else:
        yield from ranked.rows(report, page)


def _notes(found: Sequence[str]) -> Iterator[Text]:
    if found:
        yield Text()
    for note in found[:_NOTES_SHOWN]:
        yield Text.assemble(("  ! ", "bold yellow"), printable(note, _LONGEST_NOTE))
    if len(found) > _NOTES_SHOWN:
        yield Text(f"  ! {len(found) - _NOTES_SHOWN:,} more notes: see --full", "yellow")


def _next(report: Report) -> Iterator[Text]:
    """The commands that show more."""
    path = shlex.quote(printable(str(report.capture.path)))
    commands = [*_NEXT]
    if report.capture.refusals and report.snapshot.name != "oom":
        commands.insert(0, ("--at oom", "what was live when memory was refused"))
    yield title("More")
    for options, words in commands:
        yield Text(f"  hiwater report {path} {options:<13}  {words}", "dim")
