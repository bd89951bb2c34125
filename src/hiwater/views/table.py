"""A table of who held most, by whatever is asked for: lines when nothing is."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from hiwater.analysis.forest import Grouping
from hiwater.analysis.ranking import by
from hiwater.capture.moment import Stacks
from hiwater.views import terminal
from hiwater.views.report import Report
from hiwater.views.words import frame_text, printable, share, size


def write(report: Report, stream: TextIO) -> None:
    """The `top` largest rows and a row for the others; own bytes sum to what is shown."""
    table = Table(box=box.SIMPLE_HEAD, title=_title(report), title_justify="left", pad_edge=False)
    if report.by == Grouping.stack:
        _fill_with_stacks(report, table)
    else:
        _fill_with_groups(report, table, report.by or Grouping.line)
    terminal.console(stream).print(table)


def _title(report: Report) -> Text:
    whole = size(report.holdings.total_bytes)
    kind = "" if report.kind == "all" else f" of {report.kind} memory"
    return Text(f"{printable(report.title, 60)} · {whole}{kind} at {report.moment_words}")


def _fill_with_groups(report: Report, table: Table, grouping: Grouping) -> None:
    whole = report.holdings.total_bytes
    for heading in ("own", "share", "with callees", "blocks"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(str(grouping), overflow="fold")
    rows = by(report.capture, report.holdings, grouping)
    for row in rows[: report.top]:
        table.add_row(
            size(row.own_bytes, row.own_error_bytes), share(row.own_bytes, whole),
            size(row.total_bytes, row.total_error_bytes), f"{row.own_blocks:,}",
            Text(frame_text(row.frame, 200)),
        )  # fmt: skip
    rest = rows[report.top :]
    if rest:
        own, blocks = sum(row.own_bytes for row in rest), sum(row.own_blocks for row in rest)
        table.add_row(size(own), share(own, whole), "", f"{blocks:,}", Text(f"{len(rest):,} others", "dim"))


def _fill_with_stacks(report: Report, table: Table) -> None:
    held, whole = report.holdings, report.holdings.total_bytes
    for heading in ("own", "share", "blocks", "kind"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("stack, innermost first", overflow="fold")
    for stack in Stacks(report.capture, held)[: report.top]:
        frames = "\n".join(frame_text(frame, 200) for frame in stack.frames[:-9:-1]) or "[no Python frame]"
        more = f"\n… {len(stack.frames) - 8} more" if len(stack.frames) > 8 else ""
        table.add_row(
            size(stack.bytes, stack.standard_error_bytes), share(stack.bytes, whole), f"{stack.blocks:,}", stack.kind,
            Text(frames + more),
        )  # fmt: skip
    rest = len(held.node) - report.top
    if rest > 0:
        own, blocks = int(held.bytes[report.top :].sum()), int(held.blocks[report.top :].sum())
        table.add_row(size(own), share(own, whole), f"{blocks:,}", "", Text(f"{rest:,} others", "dim"))
