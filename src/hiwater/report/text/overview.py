"""The report for people: peaks, what they were made of, the lines and stacks that held most, and how far to trust it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.style import Style
from rich.text import Text

from hiwater.analysis import own_allocators
from hiwater.analysis.call_tree import IMPORT_SYSTEM, Grouping
from hiwater.analysis.ranking import by, own_lines
from hiwater.analysis.reconcile import reconcile
from hiwater.analysis.source import Sources
from hiwater.capture import Frame, ResidencySnapshot
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.program import recorded_window
from hiwater.capture.residency_snapshots import OWN, UNEXPLAINED, highest
from hiwater.capture.snapshot import Stacks
from hiwater.report.formatting import frame_text, printable, seconds, share, short_frame_text, size
from hiwater.report.request import Report
from hiwater.report.text import device_history, devices, limits, terminal, timeline
from hiwater.report.text.peak import allocated_peak
from hiwater.report.text.terminal import Page, title

KIND_WORDS = {
    "python": "Python objects and buffers",
    "native": "native heap (malloc and its family)",
    "mapping": "anonymous mappings",
    "device": "device memory",
    "shared": "shared memory",
}
BESIDE_WORDS = {
    "file": "file-backed mappings",
    "attached": "attached shared memory",
    "reserved": "reserved address space",
    "slack": "pymalloc's arenas (hold the small Python objects above)",
}
_BAR_WIDTH = 20
_FIGURES_WIDTH, _BLOCKS_WIDTH = 24, 20  # columns beside a name: size and share before it, the number of blocks behind
_FRAMES_SHOWN = 12
_WORTH_TELLING = 1 << 20  # bytes
Section = Callable[[Report], Iterator[Text]]


def write(report: Report, stream: TextIO) -> None:
    """The whole report, as wide as the terminal; wide names are shortened in their middle, and no name can move the cursor."""
    page = terminal.Page(stream, report.capture.facts.get("cwd", ""))
    for line in _report(report, page):
        page.show(line)


def _report(report: Report, page: Page) -> Iterator[Text]:
    capture = report.capture
    if capture.is_timeline:
        yield from timeline.lines(capture, report.title, report.top, page.width)
        return
    sources = Sources.of(capture.tables)
    if capture.device is not None:
        yield from device_history.head(report, page)
        sections: Sequence[Section] = (device_history.peaks, device_history.allocator, limits.refusals)
    else:
        yield from _head(report, page)
        sections = (
            _peaks, devices.peaks, _made_of, _from_allocated_to_resident, _where_resident, devices.breakdowns, limits.refusals, limits.nearness,
        )  # fmt: skip
    for section in sections:
        yield from section(report)
    yield from device_history.beside(capture)
    yield from timeline.over_time(capture, page.width)
    yield from timeline.scope_lines(capture, report.top, page.width)
    if report.by in (None, Grouping.stack):
        yield from _lines(report, sources, page)
        yield from _stacks(report, sources, page)
    else:
        yield from _rows(report, page)
    yield from _notes(report, sources)


def _head(report: Report, page: Page) -> Iterator[Text]:
    process = report.capture.process
    yield Text.assemble(("hiwater", "bold cyan"), "  ", (printable(report.title, page.room(9)), "bold"))
    ended = {"exit": "ended", "killed": "was killed", "recording": "is still running"}[process.ended]
    code = f" with exit code {process.exit_code}" if process.exit_code not in (None, 0) else ""
    mode = "every block recorded" if process.mode == "exact" else f"blocks below {size(process.sample_bytes)} sampled"
    python = f"Python {printable(process.python, 40)} · " if process.python else ""
    yield Text(f"{python}process {process.pid} {ended}{code} after {seconds(process.duration_ns)} · {mode}", "dim")
    window = recorded_window(report.capture.tables)
    if window is not None:
        yield Text(
            f"recorded inside another recording: the allocated peak covers {seconds(window[0])} to {seconds(window[1])} and includes what was "
            "live before; all other figures cover the outer recording up to then",
            "dim",
        )
    if "allocator" in report.capture.facts:
        yield Text(f"allocator: {printable(report.capture.facts['allocator'], 200)}", "dim")


def _peaks(report: Report) -> Iterator[Text]:
    """The two truths side by side, each with how exact it is."""
    capture, resident = report.capture, report.capture.resident
    yield title("Peak")
    yield allocated_peak(report)
    if resident.exact:
        how = "exact" if not resident.error_bytes else f"within {size(resident.error_bytes)}"
        how += " · kernel's high-water mark"
    else:
        how = "at least: highest sample"
    yield Text.assemble(
        f"  resident   {size(resident.peak_bytes):>11}  ", (how, "green" if resident.exact else "yellow"),
        f" · {size(resident.start_bytes)} at the start, {size(resident.end_bytes)} at the end",
    )  # fmt: skip
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
    beside = [(kind, kinds[kind]) for kind in BESIDE_WORDS if kinds[kind]]
    for kind, count in beside:
        yield Text(f"  {size(count):>11} {'–':>8}  {'':{_BAR_WIDTH}}  {BESIDE_WORDS[kind]}, not part of the sum", "dim")


def _bar(part: int, whole: int) -> str:
    filled = round(_BAR_WIDTH * part / whole) if whole > 0 else 0
    return "█" * filled + "·" * (_BAR_WIDTH - filled)


def _from_allocated_to_resident(report: Report) -> Iterator[Text]:
    """The reconciliation, as a small sum."""
    way = reconcile(report.capture)
    yield title("From allocated to resident", "the peaks are different quantities, each at its own moment")
    yield Text(f"  {size(way.allocated_bytes):>11}  allocated at its peak")
    yield Text(f"+ {size(way.resident_start_bytes):>11}  resident before the recording began")
    if way.overhead_bytes:
        yield Text(f"+ {size(way.overhead_bytes):>11}  overhead of hiwater: its tables at the end of the recording")
    if way.rest_bytes >= 0:
        yield Text(f"+ {size(way.rest_bytes):>11}  not counted: libraries loaded since, allocator slack, file pages")
    else:
        yield Text(
            f"− {size(-way.rest_bytes):>11}  at least, allocated but never touched, or not resident at that moment"
        )
    yield Text(f"= {size(way.resident_peak_bytes):>11}  resident at its peak")


def _where_resident(report: Report) -> Iterator[Text]:
    """The parts of resident memory, at the residency snapshot with the most of it."""
    look = highest(report.capture.residency_snapshots)
    if look is None:
        return
    whole = look.resident_bytes
    yield title(
        "Where resident memory was", f"at {seconds(look.at_ns)}, the residency snapshot with the most: {size(whole)}"
    )
    for part in look.parts:
        if not part.resident_bytes and not part.untouched_bytes and part.name != UNEXPLAINED:
            continue
        untouched = part.untouched_bytes if part.name != OWN else 0  # sparse tables: nobody asked for those
        beside = f", and {size(untouched)} never touched" if untouched >= _WORTH_TELLING else ""
        yield Text.assemble(
            f"  {size(part.resident_bytes):>11} {share(part.resident_bytes, whole):>8}  ",
            (_bar(part.resident_bytes, whole), "cyan"),
            f"  {printable(part.name, 40)}",
            (beside, "dim"),
        )
    yield from _partly_touched(look)


def _partly_touched(look: ResidencySnapshot) -> Iterator[Text]:
    """Large blocks that are much smaller in RAM than they were asked for."""
    for block in look.large:
        if block.bytes - block.touched_bytes < _WORTH_TELLING:
            continue
        own = [frame for frame in block.frames if not frame.file.startswith(IMPORT_SYSTEM)]
        where = frame_text(own[-1], 80) if own else "allocated by no recorded stack"
        if len(own) > 1 and not own[-1].line:  # what the mapping is, below the line that asked for it
            where = f"{frame_text(own[-2], 80)}, {printable(own[-1].file or own[-1].function, 60)}"
        yield Text(f"  one block of {size(block.bytes)} had {size(block.touched_bytes)} resident: {where}", "dim")


def _shown(report: Report) -> str:
    kind = "" if report.kind == "all" else f" of {report.kind} memory"
    error = f", any one figure within {size(report.snapshot.error_bytes)}" if report.snapshot.error_bytes else ""
    return f"{size(report.holdings.total_bytes)}{kind} at {report.snapshot_words}{error}"


def _lines(report: Report, sources: Sources, page: Page) -> Iterator[Text]:
    whole = report.holdings.total_bytes
    yield title(
        "Lines that held most", f"your code and everything it called; each byte counted once · {_shown(report)}"
    )
    lines = own_lines(report.capture.tables, report.holdings, report.top)
    for line in lines:
        name = short_frame_text(line.frame, page.room(_FIGURES_WIDTH + _BLOCKS_WIDTH))
        style = page.style(line.frame, bold=True)
        yield _figures(line.bytes, whole, line.blocks, name, style, line.standard_error_bytes)
        yield from _source(line.frame, sources, page)
    yield from _others(whole - sum(line.bytes for line in lines), "on other lines")


def _rows(report: Report, page: Page) -> Iterator[Text]:
    whole = report.holdings.total_bytes
    rows = by(report.capture.tables, report.holdings, report.grouping)
    yield title(f"By {report.grouping}", f"self, then total · {_shown(report)}")
    for row in rows[: report.top]:
        yield Text.assemble(
            f"  {size(row.self_bytes):>11} {share(row.self_bytes, whole):>8}  {size(row.total_bytes):>11}  ",
            (frame_text(row.frame, page.room(_FIGURES_WIDTH + 13)), page.style(row.frame, bold=True)),
            _beside_error(row.total_error_bytes),
        )
    yield from _others(sum(row.self_bytes for row in rows[report.top :]), "in other rows")


def _stacks(report: Report, sources: Sources, page: Page) -> Iterator[Text]:
    held, capture = report.holdings, report.capture
    order = "innermost frame first" if not report.inverted else "outermost frame first"
    yield title("Stacks that held most", f"{order}, without the import system's own frames")
    for stack in Stacks(capture.tables.paths, held)[: report.top]:
        name = f"{stack.kind} · {printable(stack.thread, 40) or 'no thread'}"
        yield _figures(stack.bytes, held.total_bytes, stack.blocks, name, "bold", stack.standard_error_bytes)
        yield from _frames(stack.frames if report.inverted else stack.frames[::-1], sources, page)
    rest = int(held.bytes[report.top :].sum())
    yield from _others(rest, f"in {max(0, len(held.node) - report.top):,} other stacks")


def _frames(frames: tuple[Frame, ...], sources: Sources, page: Page) -> Iterator[Text]:
    """One stack without the import system's frames; of a long one the middle is left out."""
    told = [frame for frame in frames if not frame.file.startswith(IMPORT_SYSTEM)]
    half = _FRAMES_SHOWN // 2
    for number, frame in enumerate(told):
        if len(told) > _FRAMES_SHOWN and half <= number < len(told) - half:
            if number == half:
                yield Text(f"{'':{_FIGURES_WIDTH}}… {len(told) - 2 * half} frames …", "dim")
            continue
        name = frame_text(frame, page.room(_FIGURES_WIDTH))
        yield Text.assemble(" " * _FIGURES_WIDTH, (name, page.style(frame)))
        yield from _source(frame, sources, page)


def _source(frame: Frame, sources: Sources, page: Page) -> Iterator[Text]:
    indent = _FIGURES_WIDTH + 4
    text = printable(sources.line(frame.file, frame.line), page.room(indent))
    if text:
        yield Text.assemble(" " * indent, (text, "italic yellow"))


def _figures(count: int, whole: int, blocks: int, name: str, style: Style | str, error_bytes: int) -> Text:
    return Text.assemble(
        f"  {size(count):>11} {share(count, whole):>8}  ",
        (name, style),
        (f"  {'about ' if error_bytes else ''}{blocks:,} block{'' if blocks == 1 else 's'}", "dim"),
        _beside_error(error_bytes),
    )


def _beside_error(error_bytes: int) -> tuple[str, str]:
    """The standard error of a row that stands on sampled blocks."""
    return (f"  ± {size(error_bytes)}" if error_bytes else "", "yellow")


def _others(count: int, where: str) -> Iterator[Text]:
    if count:
        yield Text(f"  {size(count):>11} {'':>8}  {where}", "dim")


def _notes(report: Report, sources: Sources) -> Iterator[Text]:
    """Everything that limits trust in the figures."""
    capture = report.capture
    notes = []
    if capture.process.stop_reason:
        notes.append(f"recording stopped early: {printable(capture.process.stop_reason, 300)}")
    if capture.lost_events:
        notes.append(f"{capture.lost_events:,} events were lost: the figures miss these allocations and frees")
    notes += [printable(what, 300) for what in capture.shortcomings]
    if capture.process.ended == "recording":
        notes.append(
            "the program is still running: the figures are a moment old, and may disagree by what happened during the reading"
        )
    notes += [printable(note, 300) for note in device_history.notes(capture)]
    notes += [printable(note, 300) for note in own_allocators.notes(capture.peak)]
    notes += [f"the capture contradicts itself: {printable(problem, 300)}" for problem in report.problems]
    if sources.changed:
        names = ", ".join(printable(name, 60) for name in sorted(sources.changed)[:3])
        notes.append(f"source files changed since the recording; the lines shown may not be those that ran: {names}")
    if notes:
        yield title("Notes")
        for note in notes:
            yield Text.assemble(("  ! ", "bold yellow"), note)
