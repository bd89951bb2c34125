"""What is still live: by line of code, with when it was allocated, its types and what holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.analysis.ages import PARTS, Survivors, snapshots, survivors
from hiwater.analysis.source import Sources
from hiwater.report.formatting import place_and_function, printable, share, size
from hiwater.report.request import Report
from hiwater.report.text import terminal, timeline
from hiwater.report.text.terminal import Page, title

_LONGEST = 200
_SMALLEST_SHARE = 1000
_NO_AGES = (
    "when it was allocated is not known: that needs a marker (`hiwater.mark()`) or a phase that the program reaches"
    " three times, or `hiwater run --snapshot-every 10s`"
)
_NOT_ALL_AGES = (
    "of what is missing to 100 % it is not known: the time between two snapshots was too long, or there were too many"
    " call paths"
)


def write(report: Report, stream: TextIO) -> None:
    """Write what is live at the end."""
    timeline.write(report, stream, _report)


def _report(report: Report, page: Page) -> Iterator[Text]:
    rows = survivors(report.snapshot, report.kind, described=report.top)
    sources, folder = Sources.of(report.capture.tables), page.folder
    whole = sum(row.bytes for row in rows)
    yield terminal.program(report, page)
    at = f", most at {place_and_function(rows[0].frame, folder)}" if rows else ""
    yield Text(f"{size(whole)} in {sum(row.blocks for row in rows):,} blocks is live at the end{at}", "bold")
    taken = snapshots(report.capture.tables)
    quarters = "" if taken is None else f"by quarter of the recording's time, known from {len(taken):,} snapshots"
    yield title("Still live", quarters)
    if taken is None:
        yield Text(f"  {_NO_AGES}", "yellow")
    else:
        heads = "".join(f"{name:>8}" for name in ("1st", "2nd", "3rd", "4th"))
        yield Text(f"  {'':>11} {'':>8}  {heads}", "dim")
        if any(sum(row.by_age) < row.bytes for row in rows):
            yield Text(f"  {_NOT_ALL_AGES}", "yellow")
    shown = [row for row in rows[: report.top] if row.bytes * _SMALLEST_SHARE >= whole]
    for row in shown:
        yield from _row(row, whole, sources, page)
    rest = rows[len(shown) :]
    if rest:
        yield Text(f"  {size(sum(row.bytes for row in rest)):>11} {'':>8}  on {len(rest):,} other lines", "dim")


def _row(row: Survivors, whole: int, sources: Sources, page: Page) -> Iterator[Text]:
    ages = "".join(f"{share(part, row.bytes):>8}" for part in row.by_age)
    place = place_and_function(row.frame, page.folder)
    yield Text.assemble(
        f"  {size(row.bytes):>11} {share(row.bytes, whole):>8}  {ages:{8 * PARTS if row.by_age else 0}}  ",
        (place, page.style(row.frame, bold=True)),
        (f"  {row.blocks:,} block{'' if row.blocks == 1 else 's'}", "dim"),
    )
    text = printable(sources.line(row.frame.file, row.frame.line), _LONGEST)
    if text:
        yield Text(f"{'':24}{text}", "italic yellow")
    if row.types:
        yield Text(f"{'':24}types: {printable(', '.join(row.types), _LONGEST)}", "dim")
    if row.held_by:
        yield Text(f"{'':24}held by: {printable(row.held_by, _LONGEST)}", "dim")
