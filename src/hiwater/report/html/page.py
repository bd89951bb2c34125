"""The interactive report: one page with everything in it, that asks nothing of any other file or machine.

`page.template.html` beside this file is built from `web/` and holds style, script, and a policy that allows these two and nothing
else. What is put into it here is a summary that reads without scripts, and the data.
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
    """The page of these captures, the first one in front. `source`: whose source text is in it, "own", "all" or "none"."""
    write_page(
        stream, printable(reports[0].title, 80), static_summary.lines(reports[0]), page_data.packed(reports, source)
    )


def write_page(stream: TextIO, title: str, summary: Iterable[str], data: str) -> None:
    """A page of this title that reads `summary` (HTML) without scripts, and holds `data`."""
    template = (files("hiwater.report.html") / "page.template.html").read_text("utf-8")
    before, rest = template.split("{{title}}", 1)
    between, rest = rest.split("{{summary}}", 1)
    middle, after = rest.split("{{data}}", 1)
    stream.write(before + escape(f"{title} — hiwater") + between)
    stream.writelines(summary)
    stream.write(middle)
    stream.write(data)
    stream.write(after)
