"""A check as Markdown, for a comment on a change and for the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from hiwater.analysis.baseline import FIGURES
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
from hiwater.report.text.diff_markdown import code, plain

_LONGEST = 60_000
"""Characters: a comment on GitHub has at most 65,536, and the summary of a step 1 MiB."""
_FAILURES_SHOWN = 20
_NOTES_SHOWN = 20


def write(report: CheckReport, stream: TextIO) -> None:
    """The failures first; programs whose figures do not fit are counted. Names stand in code spans: nothing in them
    is markup."""
    length = 0
    for number, block in enumerate(_blocks(report)):
        length += len(block) + 1
        if length > _LONGEST:
            stream.write(f"\nand more, from block {number + 1} on: `--format text` has all\n")
            return
        stream.write(block + "\n")


def _blocks(report: CheckReport) -> Iterator[str]:
    yield f"### Memory: {plain(report.lead)}\n"
    failed = [one for one in report.ordered if one.failures]
    for one in failed[:_FAILURES_SHOWN]:
        yield "\n".join(_failure(one))
    if len(failed) > _FAILURES_SHOWN:
        yield f"- and {len(failed) - _FAILURES_SHOWN:,} more programs"
    if failed:
        yield ""
    yield "| program | figure | before | now | change | allowed | |\n|---|---|---:|---:|---:|---:|---|"
    for one in report.ordered:
        yield "\n".join(_rows(one))
    notes = report.notes[:_NOTES_SHOWN]
    if notes:
        yield "\n" + "\n".join(f"- {plain(note)}" for note in notes)


def _failure(one: Checked) -> Iterator[str]:
    for row in one.failures:
        yield f"- ❌ {code(name_of(one))}: {plain(failure_text(row))}"
    if one.causes:
        yield f"  - {causes_lead(one.causes)}: {'; '.join(code(cause_text(cause)) for cause in one.causes)}"


def _rows(one: Checked) -> Iterator[str]:
    for row in (*one.rows, *one.limits):
        before, allowed = (figure_text(row.figure, count) for count in (row.before, row.allowed))
        sign = {"worse": "❌ ", "better": "✅ "}.get(row.verdict, "")
        cells = [code(name_of(one)), FIGURES[row.figure], before, now_text(row), change_text(row), allowed]
        yield f"| {' | '.join(cells)} | {sign}{VERDICTS[row.verdict]} |"
