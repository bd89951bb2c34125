"""A comparison as Markdown, for a comment on a change: peaks first, then a table of what grew and shrank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TextIO

from hiwater.capture.comparison import Change, Changes, ComparedFigure
from hiwater.report.diff_request import DiffReport, headline, snapshot_words, verdict_words
from hiwater.report.formatting import frame_text, printable, short_frame_text, signed_percent, signed_size, size

_NAME_WIDTH = 110
_FRAMES_SHOWN = 8


def write(report: DiffReport, stream: TextIO) -> None:
    """The whole comparison. Names stand in code spans: nothing in them is markup, and nobody is mentioned by them."""
    stream.writelines(line + "\n" for line in _lines(report))


def code(text: str) -> str:
    """Text as a code span in a table cell: fenced by more backticks than it holds, and without a bar that would end
    the cell."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def plain(text: str) -> str:
    """Text that is read as it stands: what Markdown or HTML would take for markup is escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~@&-])", r"\\\1", printable(text, 300))


def _lines(report: DiffReport) -> Iterator[str]:
    comparison = report.comparison
    yield f"### Memory of {code(printable(report.after.title, 80))}"
    yield ""
    yield f"**{plain(headline(comparison))}**"
    yield ""
    if report.verdict is not None:
        yield f"{'✅' if report.verdict.kept else '❌'} {verdict_words(report.verdict)}"
        yield ""
    yield "| | before | after | change | | |"
    yield "|---|---:|---:|---:|---:|---|"
    yield _figure("peak allocated", comparison.peak, f"requested bytes, {report.exactness}")
    yield _figure("peak resident", comparison.resident, report.resident_exactness)
    if comparison.peak.change is not None:
        yield _figure("at the end", comparison.totals["end_bytes"], "still allocated")
        yield _figure("allocated over the run", comparison.totals["allocated_bytes"], "over the whole recording")
    for title, changes in report.sections:
        yield ""
        yield from _table(report, title, changes)
    remarks = report.notes
    if remarks:
        yield ""
        yield from (f"- ⚠ {plain(remark)}" for remark in remarks)


def _figure(name: str, figure: ComparedFigure, remark: str) -> str:
    known = ["not recorded" if count is None else size(count) for count in (figure.before, figure.after)]
    change = "" if figure.change is None else signed_size(figure.change)
    percent = "within error" if figure.is_within_error else signed_percent(figure.percent)
    return f"| **{name}** | {known[0]} | {known[1]} | {change} | {percent} | {remark} |"


def _table(report: DiffReport, title: str, changes: Changes) -> Iterator[str]:
    is_collapsed = title.startswith("Stacks") and report.by is None
    if is_collapsed:
        yield f"<details><summary>{title}</summary>"
        yield ""
    else:
        yield f"**{title}** – {snapshot_words(report.comparison)}"
        yield ""
    yield "| change | before | after | | |"
    yield "|---:|---:|---:|---|---|"
    for change in changes[: report.top]:
        cells = (signed_size(change.bytes), size(change.before_bytes), size(change.after_bytes), change.state)
        yield f"| {' | '.join(cells)} | {_names(change)} |"
    rest = changes.after(report.top)
    if rest:
        yield f"| {signed_size(rest.bytes)} | | | | in {len(rest):,} more |"
    if is_collapsed:
        yield ""
        yield "</details>"


def _names(change: Change) -> str:
    """The frames of a change in one cell, innermost first."""
    frames = change.frames[::-1]
    if not frames:
        return "no Python frame"
    text_of = frame_text if len(frames) == 1 else short_frame_text
    shown = [code(text_of(frame, _NAME_WIDTH)) for frame in frames[:_FRAMES_SHOWN]]
    more = [f"… {len(frames) - _FRAMES_SHOWN} more"] if len(frames) > _FRAMES_SHOWN else []
    return "<br>".join(shown + more)
