"""The interactive page of a comparison: the page of the later capture with what the earlier one held beside every figure."""

from __future__ import annotations

from typing import TextIO

from hiwater.views import html, html_data, html_summary
from hiwater.views.diff_report import DiffReport
from hiwater.views.words import printable


def write(report: DiffReport, stream: TextIO, source: str = "own") -> None:
    """The page of this comparison; of merged captures, of each pair that was compared. `source` is as for `html.write`."""
    title = f"What grew in {printable(report.after.title, 80)}"
    html.write_page(stream, title, html_summary.changes(report), html_data.packed_diff(report, source))
