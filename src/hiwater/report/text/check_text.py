"""A check as text: what is above what is allowed, and where, then every figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from hiwater.analysis.baseline import FIGURES, Compared
from hiwater.analysis.check import Checked
from hiwater.report.check_report import (
    VERDICTS,
    CheckReport,
    cause_text,
    causes_lead,
    change_text,
    failure_text,
    figure_text,
    name_of,
    now_text,
)

_PROGRAMS_SHOWN = 100
_OF_LIMITS = {"worse": "above the limit", "same": "below the limit"}
_HEADS = ("", "before", "now", "change", "allowed", "")


def write(report: CheckReport, stream: TextIO) -> None:
    """The failures, the figures of at most 100 programs, and the notes."""
    stream.writelines(line.rstrip() + "\n" for line in _lines(report))


def _lines(report: CheckReport) -> Iterator[str]:
    yield report.lead
    for one in report.ordered[:_PROGRAMS_SHOWN]:
        for row in one.failures:
            yield f"{name_of(one)}: {failure_text(row)}"
        if one.causes:
            yield f"  {causes_lead(one.causes)}: {'; '.join(map(cause_text, one.causes))}"
    for one in report.ordered[:_PROGRAMS_SHOWN]:
        yield ""
        yield from _table(one)
    if len(report.checked) > _PROGRAMS_SHOWN:
        yield f"and {len(report.checked) - _PROGRAMS_SHOWN:,} more programs"
    if report.notes:
        yield ""
        yield from (f"note: {note}" for note in report.notes)


def _table(one: Checked) -> Iterator[str]:
    rows = [(name_of(one), *_HEADS[1:]), *map(_cells, one.rows), *map(_cells, one.limits)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells, row[-1]])


def _cells(row: Compared) -> tuple[str, ...]:
    counts = [figure_text(row.figure, row.before), now_text(row)]
    is_limit = row.before is None and row.allowed is not None
    verdict = (_OF_LIMITS if is_limit else VERDICTS).get(row.verdict, VERDICTS[row.verdict])
    return f"  {FIGURES[row.figure]}", *counts, change_text(row), figure_text(row.figure, row.allowed), verdict
