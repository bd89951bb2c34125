"""The interactive page of a comparison: the page of the later capture, with the figures of the earlier one next to
its own."""

from __future__ import annotations

from typing import TextIO

from hiwater.report.diff_request import DiffReport
from hiwater.report.formatting import printable
from hiwater.report.html import page, page_data, static_summary


def write(report: DiffReport, stream: TextIO, source: str = "own") -> None:
    """Write the page of this comparison; for merged captures, of each compared pair. `source` is as in
    `html.write()`."""
    title = f"What changed in {printable(report.after.title, 80)}"
    page.write_page(stream, title, static_summary.changes(report), page_data.packed_diff(report, source))
