"""The advice alone: each finding with its evidence, the saving and the change; one line where nothing was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.report import advice
from hiwater.report.request import Report
from hiwater.report.text import ranked, terminal, timeline
from hiwater.report.text.terminal import Page


def write(report: Report, stream: TextIO) -> None:
    """Write the findings of one report."""
    timeline.write(report, stream, _report)


def _report(report: Report, page: Page) -> Iterator[Text]:
    yield terminal.program(report, page)
    found = list(ranked.advice_with_evidence(report.capture, page))
    yield from found or [Text(advice.NOTHING_FOUND)]
