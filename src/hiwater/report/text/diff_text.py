"""A comparison for people: both peaks, the totals, and what grew and shrank; as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.analysis.diff import MatchedComparison
from hiwater.analysis.matching import SourceText
from hiwater.analysis.source import as_recorded
from hiwater.capture.comparison import Change, Changes, ComparedFigure
from hiwater.report.diff_request import DiffReport, headline, snapshot_words, verdict_words
from hiwater.report.formatting import (
    frame_text,
    printable,
    seconds,
    short_frame_text,
    signed_percent,
    signed_size,
    size,
)
from hiwater.report.request import Report
from hiwater.report.text import terminal
from hiwater.report.text.terminal import Page

_FIGURES_WIDTH = 51  # columns of a row before the name
_SMALLEST_NAME, _NARROW_INDENT = 40, 16
_FRAMES_SHOWN = 8
_SMALLEST_SHARE = 1000
_COLOURS = {"grew": "red", "new": "bold red", "shrank": "green", "gone": "bold green", "within error": "dim"}


def write(report: DiffReport, stream: TextIO) -> None:
    """The whole comparison; no name can move the cursor."""
    page = terminal.Page(stream, report.comparison.after.facts.get("cwd", ""))
    for line in _report(report, page):
        page.show(line)


def _report(report: DiffReport, page: Page) -> Iterator[Text]:
    comparison = report.comparison
    source = as_recorded(comparison.after.tables)
    yield from (*_head(report), *_processes(report), *_peaks(report), *_totals(comparison))
    for title, changes in report.sections:
        yield Text.assemble("\n", (title, "bold"), (f"  {snapshot_words(comparison)}", "dim"))
        shown = _worth_a_row(report, changes)
        for change in changes[:shown]:
            yield from _change(change, page, source)
        rest = changes.after(shown)
        if rest:
            yield Text(f"  {signed_size(rest.bytes):>12}  in {len(rest):,} more", "dim")
    if not report.sections:
        yield Text("\nNothing that held memory changed.")
    yield from _ending(report)


def _worth_a_row(report: DiffReport, changes: Changes) -> int:
    """How many of the changes get a row. Those below a thousandth of the largest change of all are summed up, unless
    rows of one kind were asked for."""
    first = changes[: report.top]
    if report.by is not None:
        return len(first)
    largest = max(abs(some[0].bytes) for _, some in report.sections)
    return sum(abs(change.bytes) * _SMALLEST_SHARE >= largest for change in first)


def _head(report: DiffReport) -> Iterator[Text]:
    comparison = report.comparison
    yield Text.assemble(("hiwater diff", "bold cyan"), "  ", (printable(report.after.title, 80), "bold"))
    yield Text(headline(comparison), "bold")
    for word, capture in (("before", comparison.before), ("after", comparison.after)):
        process = capture.process
        yield Text(
            f"  {word:<6}  {printable(str(capture.path), 100)} · process {process.pid} · Python"
            f" {printable(process.python, 20) or '?'} · {seconds(process.duration_ns)}",
            "dim",
        )


def _processes(report: DiffReport) -> Iterator[Text]:
    """Of merged captures: the peak of each process, what grew most first."""
    if len(report.processes) < 2:
        return
    yield Text.assemble(
        "\n", ("Processes", "bold"), (f"  {snapshot_words(report.comparison)}; the first is shown below", "dim")
    )
    for comparison in report.processes[: report.top]:
        after = Report(comparison.after, comparison.after_snapshot, is_one_of_several=True)
        yield _figure(
            f"{comparison.after.process.pid}", comparison.allocated, f"{after.process}  {printable(after.program, 60)}"
        )
    if len(report.processes) > report.top:
        yield Text(f"  … and {len(report.processes) - report.top:,} more", "dim")


def _peaks(report: DiffReport) -> Iterator[Text]:
    comparison = report.comparison
    yield Text.assemble("\n", ("Peak", "bold"), (f"  {'before':>18} {'after':>14} {'change':>15}", "dim"))
    yield _figure("allocated", comparison.peak, f"requested bytes · {report.exactness}")
    yield _figure("resident", comparison.resident, report.resident_exactness)


def _figure(name: str, figure: ComparedFigure, remark: str = "", *, is_size: bool = True) -> Text:
    def shown(count: int | None) -> str:
        return "not recorded" if count is None else size(count) if is_size else f"{count:,}"

    change, style = "", ""
    if figure.change is not None:
        change = signed_size(figure.change) if is_size else f"{figure.change:+,}".replace("-", "−")
        percent = "within error" if figure.is_within_error else signed_percent(figure.percent)
        style = "" if figure.is_within_error or not figure.change else "red" if figure.change > 0 else "green"
        change = f"{change:>15} {percent:>12}"
    return Text.assemble(
        f"  {name:<10} {shown(figure.before):>12} {shown(figure.after):>14} ",
        (f"{change:<28}", style),
        (f"  {remark}" if remark else "", "dim"),
    )


def _totals(comparison: MatchedComparison) -> Iterator[Text]:
    if comparison.peak.change is None:
        return
    yield Text("\nTotals", "bold")
    yield _figure("at the end", comparison.totals["end_bytes"], "still allocated")
    yield _figure("allocated", comparison.totals["allocated_bytes"], "requested over the whole recording")
    yield _figure("blocks", comparison.totals["allocations"], "allocations over the whole recording", is_size=False)
    yield _figure("at peak", comparison.totals["peak_blocks"], "blocks at the peak", is_size=False)
    yield _figure(
        "temporary", comparison.totals["temporaries"], "freed before the thread's next allocation", is_size=False
    )


def _change(change: Change, page: Page, source: SourceText) -> Iterator[Text]:
    """A row: how much, from what to what, and where. On a narrow terminal the name has a line of its own."""
    state, frames = change.state, change.frames
    is_wide = page.width >= _FIGURES_WIDTH + _SMALLEST_NAME
    before = _FIGURES_WIDTH if is_wide else _NARROW_INDENT
    room, indent = page.room(before + 9), " " * before
    name = short_frame_text(frames[-1], room) if frames else "[no Python frame]"
    figures = Text.assemble(
        (f"  {signed_size(change.bytes):>12}  ", _COLOURS[state]),
        f"{size(change.before_bytes):>11} → {size(change.after_bytes):<11} ", (f"{state:<8}  ", _COLOURS[state]),
    )  # fmt: skip
    style = page.style(frames[-1], bold=True) if frames else "bold"
    where = Text.assemble((name, style), (f"  {change.kind}" if change.kind else "", "dim"))
    if is_wide:
        yield Text.assemble(figures, where)
    else:
        figures.rstrip()
        yield figures
        yield Text.assemble(indent, where)
    if not change.bytes:
        by = change.after_total_bytes - change.before_total_bytes
        yield Text(f"{indent}self; {signed_size(by)} in callees", "dim")
    if frames and state != "gone":
        text = source(frames[-1].file, frames[-1].line)
        if text:
            yield Text(f"{indent}{printable(text, page.room(before))}", "italic yellow")
    callers = frames[-2::-1]
    for frame in callers[:_FRAMES_SHOWN]:
        yield Text.assemble(indent, (frame_text(frame, page.room(before)), page.style(frame)))
    if len(callers) > _FRAMES_SHOWN:
        yield Text(f"{indent}… {len(callers) - _FRAMES_SHOWN} more frames", "dim")


def _ending(report: DiffReport) -> Iterator[Text]:
    remarks = [printable(note, 300) for note in report.notes]
    if remarks:
        yield Text("\nNotes", "bold")
        for remark in remarks:
            yield Text.assemble(("  ! ", "bold yellow"), remark)
    if report.verdict is not None:
        word, style = ("kept", "green") if report.verdict.kept else ("broken", "bold red")
        yield Text.assemble(("\nLimit " + word, style), f": {verdict_words(report.verdict)}")
