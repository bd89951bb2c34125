"""The whole report: every figure, what memory consisted of, the lines and stacks with the most, and how far to trust
all that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.text import Text

from hiwater._os.ownership import IMPORT_SYSTEM
from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.reconcile import reconcile
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture import ResidencySnapshot
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.residency_snapshots import OVERHEAD, UNEXPLAINED, highest
from hiwater.report.formatting import KIND_WORDS, frame_text, printable, seconds, share, size
from hiwater.report.headline import headline
from hiwater.report.request import Report
from hiwater.report.text import device_history, devices, limits, phases, ranked, terminal, timeline
from hiwater.report.text.notes import notes
from hiwater.report.text.peak import allocated_peak, at_start_and_end, resident_peak
from hiwater.report.text.terminal import Page, title

UNCOUNTED_KINDS = {
    "file": "file-backed mappings",
    "attached": "attached shared memory",
    "reserved": "reserved address space",
    "slack": "pymalloc's arenas (hold the small Python objects above)",
}
_BAR_WIDTH = 20
_WORTH_TELLING = 1 << 20  # bytes
Section = Callable[[Report], Iterator[Text]]


def write(report: Report, stream: TextIO) -> None:
    """Write everything, as wide as the terminal. Long names are shortened in the middle, and no name can move the
    cursor."""
    timeline.write(report, stream, _report)


def _report(report: Report, page: Page) -> Iterator[Text]:
    capture = report.capture
    sources, ranking = Sources.of(capture.tables), rank_lines(capture.tables, report.holdings)
    if capture.device is not None:
        yield from device_history.head(report, page)
        sections: Sequence[Section] = (device_history.peaks, device_history.allocator, limits.refusals)
    else:
        yield from _head(report, page)
        sections = (
            _peaks, devices.peaks, _made_of, _from_allocated_to_resident, _where_resident, devices.breakdowns,
            limits.refusals, limits.nearness,
        )  # fmt: skip
    yield Text(headline(report, ranking, page.folder), "bold")
    for section in sections:
        yield from section(report)
    yield from device_history.of_process(capture)
    yield from timeline.over_time(capture, page.width)
    yield from timeline.scope_lines(capture, report.top, page.width)
    yield from phases.whole(capture, report.top)
    if report.by in (None, Grouping.stack):
        yield from ranked.lines(report, ranking, sources, page)
        yield from ranked.stacks(report, sources, page)
    else:
        yield from ranked.rows(report, page)
    yield from ranked.advice_with_evidence(capture, page)
    found = notes(report, sources)
    if found:
        yield title("Notes")
        for note in found:
            yield Text.assemble(("  ! ", "bold yellow"), note)


def _head(report: Report, page: Page) -> Iterator[Text]:
    yield terminal.program(report, page)
    yield Text(f"{report.process_words} · {report.mode_words}", "dim")
    yield from terminal.own_code(report)
    if "allocator" in report.capture.facts:
        yield Text(f"allocator: {printable(report.capture.facts['allocator'], 200)}", "dim")


def _peaks(report: Report) -> Iterator[Text]:
    """The allocated and the resident peak, each with its accuracy."""
    capture = report.capture
    yield title("Peak")
    yield allocated_peak(report)
    yield resident_peak(report)
    yield at_start_and_end(report)
    end = capture.end
    yield Text(
        f"  at the end {size(end.allocated_bytes):>11}  still allocated in {end.allocated_blocks:,} blocks, "
        f"of {size(capture.totals.allocated_bytes)} in {capture.totals.allocations:,} allocations"
    )


def _made_of(report: Report) -> Iterator[Text]:
    snapshot = report.snapshot
    kinds, whole = snapshot.kind_bytes(), snapshot.allocated_bytes
    yield title("Held by kind", f"at {report.snapshot_words}: {size(whole)}")
    for kind in COUNTED_KINDS:
        if kinds[kind] or kind in ("python", "native", "mapping"):
            yield Text.assemble(
                f"  {size(kinds[kind]):>11} {share(kinds[kind], whole):>8}  ",
                (_bar(kinds[kind], whole), "cyan"),
                f"  {KIND_WORDS[kind]}",
            )
    uncounted = [(kind, kinds[kind]) for kind in UNCOUNTED_KINDS if kinds[kind]]
    for kind, count in uncounted:
        yield Text(
            f"  {size(count):>11} {'–':>8}  {'':{_BAR_WIDTH}}  {UNCOUNTED_KINDS[kind]}, not part of the sum", "dim"
        )


def _bar(part: int, whole: int) -> str:
    filled = round(_BAR_WIDTH * part / whole) if whole > 0 else 0
    return "█" * filled + "·" * (_BAR_WIDTH - filled)


def _from_allocated_to_resident(report: Report) -> Iterator[Text]:
    """The reconciliation, as a small sum."""
    way = reconcile(report.capture)
    yield title("From allocated to resident", "the peaks are different quantities, each at its own moment")
    yield Text(f"  {size(way.allocated_bytes):>11}  allocated at its peak")
    yield Text(f"+ {size(way.resident_start_bytes):>11}  resident before the recording began")
    if way.rest_bytes >= 0:
        yield Text(f"+ {size(way.rest_bytes):>11}  not counted: libraries loaded since, allocator slack, file pages")
    else:
        yield Text(
            f"− {size(-way.rest_bytes):>11}  at least, allocated but never touched, or not resident at that moment"
        )
    yield Text(f"= {size(way.resident_peak_bytes):>11}  resident at its peak")


def _where_resident(report: Report) -> Iterator[Text]:
    """The parts of resident memory in the residency snapshot with most of it."""
    snapshot = highest(report.capture.residency_snapshots)
    if snapshot is None:
        return
    whole = snapshot.resident_bytes
    yield title(
        "Where resident memory was",
        f"at {seconds(snapshot.at_ns)}, the residency snapshot with the most: {size(whole)}",
    )
    for part in snapshot.parts:
        if not part.resident_bytes and not part.untouched_bytes and part.name != UNEXPLAINED:
            continue
        untouched = part.untouched_bytes if part.name != OVERHEAD else 0  # sparse tables: nobody asked for those
        untouched_text = f", and {size(untouched)} never touched" if untouched >= _WORTH_TELLING else ""
        yield Text.assemble(
            f"  {size(part.resident_bytes):>11} {share(part.resident_bytes, whole):>8}  ",
            (_bar(part.resident_bytes, whole), "cyan"),
            f"  {printable(part.name, 40)}",
            (untouched_text, "dim"),
        )
    yield from _partly_touched(snapshot)


def _partly_touched(snapshot: ResidencySnapshot) -> Iterator[Text]:
    """Large blocks that have much less resident than requested memory."""
    for block in snapshot.large:
        if block.bytes - block.touched_bytes < _WORTH_TELLING:
            continue
        own = [frame for frame in block.frames if not frame.file.startswith(IMPORT_SYSTEM)]
        where = frame_text(own[-1], 80) if own else "allocated by no recorded stack"
        if len(own) > 1 and not own[-1].line:  # the label of the mapping, below the line that made it
            where = f"{frame_text(own[-2], 80)}, {printable(own[-1].file or own[-1].function, 60)}"
        yield Text(f"  one block of {size(block.bytes)} had {size(block.touched_bytes)} resident: {where}", "dim")
