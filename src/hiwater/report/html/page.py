"""The interactive report: one page that contains everything and loads nothing.

`page.template.html` in this folder is built from `web/`. It has the style, the script, and a policy that allows only
these two. This module adds a summary that needs no scripts, and the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TextIO

from hiwater.report.formatting import printable
from hiwater.report.html import page_data, static_summary
from hiwater.report.request import Report


def write(reports: Sequence[Report], stream: TextIO, source: str = "own") -> None:
    """Write the page of these captures. `source` chooses the source text in it: "own", "all" or "none"."""
    # Made before the data, which is large.
    title, summary = printable(reports[0].title, 80), list(static_summary.lines(reports))
    write_page(stream, title, summary, page_data.packed(reports, source))


def write_page(stream: TextIO, title: str, summary: Iterable[str], data: str) -> None:
    """Write a page with this title and `data`. Without scripts it shows `summary` (HTML)."""
    template = (files("hiwater.report.html") / "page.template.html").read_text("utf-8")
    before, rest = template.split("{{title}}", 1)
    between, rest = rest.split("{{summary}}", 1)
    middle, after = rest.split("{{data}}", 1)
    stream.write(before + escape(f"{title} — hiwater") + between)
    stream.writelines(summary)
    stream.write(middle)
    stream.write(data)
    stream.write(after)
