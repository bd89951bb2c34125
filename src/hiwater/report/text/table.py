"""A table of what held most memory: by line, or by the key of `--by`."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.ranking import by
from hiwater.capture.snapshot import Stacks
from hiwater.report.formatting import frame_text, printable, share, size
from hiwater.report.request import Report
from hiwater.report.text import terminal
from hiwater.report.text.terminal import Page


def write(report: Report, stream: TextIO) -> None:
    """The `top` largest rows and a row for the others; own bytes sum to what is shown."""
    page = terminal.Page(stream, report.capture.facts.get("cwd", ""))
    table = Table(box=box.SIMPLE_HEAD, title=_title(report), title_justify="left", pad_edge=False)
    if report.by == Grouping.stack:
        _fill_with_stacks(report, table, page)
    else:
        _fill_with_groups(report, table, report.by or Grouping.line, page)
    page.console.print(table)


def _title(report: Report) -> Text:
    whole = size(report.holdings.total_bytes)
    kind = "" if report.kind == "all" else f" of {report.kind} memory"
    return Text(f"{printable(report.title, 60)} · {whole}{kind} at {report.snapshot_words}")


def _fill_with_groups(report: Report, table: Table, grouping: Grouping, page: Page) -> None:
    whole = report.holdings.total_bytes
    for heading in ("self", "share", "total", "blocks"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(str(grouping), overflow="fold")  # retired word: rich's name
    rows = by(report.capture.tables, report.holdings, grouping)
    for row in rows[: report.top]:
        table.add_row(
            size(row.self_bytes, row.self_error_bytes), share(row.self_bytes, whole),
            size(row.total_bytes, row.total_error_bytes), f"{row.self_blocks:,}",
            Text(frame_text(row.frame, 200), page.style(row.frame)),
        )  # fmt: skip
    rest = rows[report.top :]
    if rest:
        own, blocks = sum(row.self_bytes for row in rest), sum(row.self_blocks for row in rest)
        table.add_row(size(own), share(own, whole), "", f"{blocks:,}", Text(f"{len(rest):,} others", "dim"))


def _fill_with_stacks(report: Report, table: Table, page: Page) -> None:
    held, whole = report.holdings, report.holdings.total_bytes
    for heading in ("self", "share", "blocks", "kind"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("stack, innermost first", overflow="fold")  # retired word: rich's name
    for stack in Stacks(report.capture.tables.paths, held)[: report.top]:
        frames = [Text(frame_text(frame, 200), page.style(frame)) for frame in stack.frames[:-9:-1]]
        more = [Text(f"… {len(stack.frames) - 8} more", "dim")] if len(stack.frames) > 8 else []
        names = Text("\n").join([*frames, *more]) if frames else Text("[no Python frame]")
        held_bytes = size(stack.bytes, stack.standard_error_bytes)
        table.add_row(held_bytes, share(stack.bytes, whole), f"{stack.blocks:,}", stack.kind, names)
    rest = len(held.node) - report.top
    if rest > 0:
        own, blocks = int(held.bytes[report.top :].sum()), int(held.blocks[report.top :].sum())
        table.add_row(size(own), share(own, whole), f"{blocks:,}", "", Text(f"{rest:,} others", "dim"))
