"""The interactive page of a comparison: the page of the later capture with what the earlier one held beside every figure."""

from __future__ import annotations

from typing import TextIO

from hiwater.report.diff_request import DiffReport
from hiwater.report.formatting import printable
from hiwater.report.html import page, page_data, static_summary


def write(report: DiffReport, stream: TextIO, source: str = "own") -> None:
    """The page of this comparison; of merged captures, of each pair that was compared. `source` is as for `html.write`."""
    title = f"What grew in {printable(report.after.title, 80)}"
    page.write_page(stream, title, static_summary.changes(report), page_data.packed_diff(report, source))
