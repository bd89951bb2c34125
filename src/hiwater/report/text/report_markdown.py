"""A report as Markdown, for a comment or a ticket. Of one process: the line that holds most, and a table of lines.
Of several: what they held at once, what is uneven in a job, the processes, the phases. Tables end after a few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from hiwater._os.headline import BEFORE
from hiwater.analysis.job import Job, is_job, limit_share
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import UserLine, rank_lines
from hiwater.report.formatting import place_text, printable, share, size
from hiwater.report.headline import headline
from hiwater.report.request import Report, process_words, run_of
from hiwater.report.text import job as job_text
from hiwater.report.text import processes
from hiwater.report.text.diff_markdown import code, plain

_ROWS = 20
_LINES = 10


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """The whole text. Names stand in code spans: nothing in them is markup, and nobody is mentioned by them."""
    run = reports[0].run
    one = len(reports) == 1 and (run is None or not run.is_of_several)
    stream.writelines(line + "\n" for line in (_process(reports[0]) if one else _processes(reports)))


def _process(report: Report) -> Iterator[str]:
    capture, whole = report.capture, report.holdings.total_bytes
    folder = capture.facts.get("cwd", "")
    ranking, sources = rank_lines(capture.tables, report.holdings), Sources.of(capture.tables)
    yield f"### Memory of {code(printable(report.program, 80))}"
    yield ""
    yield f"**{plain(headline(report, ranking, folder))}**"
    yield ""
    yield plain(report.process_words)
    yield ""
    yield "| held | share | line | source |"
    yield "|---:|---:|---|---|"
    shown = [row for row in [*ranking.lines[:_LINES], *ranking.imports[:1], *ranking.other[:1]] if row.bytes]
    for row in shown:
        yield _line(row, whole, sources, folder)
    rest = sum(row.bytes for row in ranking.rows) - sum(row.bytes for row in shown)
    if rest:
        yield f"| {size(rest)} | {share(rest, whole)} | on other lines | |"
    if ranking.untouched_bytes:
        yield (
            f"| {size(ranking.untouched_bytes)} | {share(ranking.untouched_bytes, whole)} | never touched, so not in"
            " RAM | |"
        )
    yield ""
    yield f"With everything that each line called, at {plain(report.snapshot_words)}."
    if report.own_code_words:
        yield plain(report.own_code_words.capitalize()) + "."


def _line(row: UserLine, whole: int, sources: Sources, folder: str) -> str:
    text = printable(sources.line(row.frame.file, row.frame.line), 80)
    place = BEFORE[row.group] + code(place_text(row.frame, folder, 100))
    return f"| {size(row.bytes)} | {share(row.bytes, whole)} | {place} | {code(text) if text else ''} |"


def _processes(reports: Sequence[Report]) -> Iterator[str]:
    run = run_of(reports)
    job = Job(run.captures if is_job(run.captures) else ())
    yield f"### Memory of {process_words([report.capture for report in reports])}"
    yield ""
    for outlier in job.outliers:
        yield f"- **{plain(job_text.outlier_words(outlier))}**"
    worst = processes.worst_first(reports)[0]
    yield from (f"- {plain(text)}" for text in processes.answers(run, worst, worst.capture.facts.get("cwd", "")))
    if job.skew is not None:
        yield f"- {plain(job_text.skew_words(job))}"
    yield from (f"- ⚠ {plain(note)}" for note in processes.notes(run.short, run.unrecorded, run.unreadable))
    yield ""
    yield from _table(reports)
    if job.phases:
        yield from _phases(job)


def _table(reports: Sequence[Report]) -> Iterator[str]:
    yield "| process | peak | resident | of its limit | ended |"
    yield "|---|---:|---:|---:|---|"
    ordered = processes.dead_first(reports)
    for report in ordered[:_ROWS]:
        used = limit_share(report.capture)
        figures = f"{size(report.capture.peak_bytes)} | {report.resident_words}"
        of_limit = "" if used is None else f"{used:.0%}"
        name = code(printable(job_text.process_words(report.capture), 100))
        yield f"| {name} | {figures} | {of_limit} | {plain(report.end_words)} |"
    if len(ordered) > _ROWS:
        yield f"| … and {len(ordered) - _ROWS:,} with lower peaks | | | | |"
    yield ""
    yield "Each peak is at its own time: they do not add up."


def _phases(job: Job) -> Iterator[str]:
    yield ""
    yield "| phase | count | highest rise | median rise | kept by one process | worst |"
    yield "|---|---:|---:|---:|---:|---|"
    for phase in job.phases[:_ROWS]:
        costs = (phase.highest_rise_bytes, phase.median_rise_bytes, phase.kept_bytes)
        words = " | ".join(size(cost) for cost in costs)
        yield f"| {code(printable(phase.name, 60))} | {phase.count:,} | {words} | {code(job_text.where_words(phase))} |"
