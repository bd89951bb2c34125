"""What a report on a job says beyond that on several processes: the uneven processes and why, and the phases of each
name over all processes."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hiwater.analysis.job import Job, Outlier, PhaseCost, engine_memory, last_line, used_bytes, worker_name
from hiwater.capture import Capture
from hiwater.report.formatting import place_text, printable, signed_size, size
from hiwater.report.request import Report
from hiwater.report.text.terminal import title

_PHASES_SHOWN = 10
_INDENT = 40 * " "


def process_words(capture: Capture) -> str:
    """The process in a few words: its name for the engine, or its rank, or its number; and its machine."""
    rank = capture.facts.get("rank", "")
    name = worker_name(capture) or (f"rank {rank}" if rank else "")
    host = capture.facts.get("host", "")
    number = f"process {capture.process.pid}"
    return printable(f"{f'{name}, ' if name else ''}{number}{f' on {host}' if host else ''}", 160)


def more_of(report: Report) -> Iterator[Text]:
    """Below the row of a process: what it held when it was killed, and the engine's own figures."""
    capture = report.capture
    last = last_line(capture) if report.is_dead else None
    if last is not None:
        where = place_text(last.frame, capture.facts.get("cwd", ""), 100)
        yield Text(
            f"{_INDENT}at its end {size(capture.end_bytes)} allocated, most at {where}: {size(last.bytes)}",
            "red",
        )
    own = engine_memory(capture)
    if own is not None:
        figures = (
            f"managed {size(own.managed_bytes)}, unmanaged {size(own.unmanaged_bytes)}, spilled"
            f" {size(own.spilled_bytes)}"
        )
        engine = printable(capture.facts.get("engine", "the engine"), 20)
        yield Text(
            f"{_INDENT}{engine}'s own figures at its highest: process {size(own.process_bytes)}, {figures}", "dim"
        )


def skew_words(job: Job) -> str:
    """How uneven the peaks are, in one sentence; "" for fewer than three processes."""
    if job.skew is None:
        return ""
    return (
        f"highest peak {size(job.highest_bytes)}, {job.skew:.1f} times the median of {len(job.recorded):,} processes "
        f"({size(job.median_bytes)})"
    )


def outlier_words(outlier: Outlier) -> str:
    """Which process it is, how far above the median, and the line that explains most of it."""
    capture = outlier.capture
    text = f"{process_words(capture)}: peak {size(used_bytes(capture))}, {outlier.times:.1f} times the median"
    if outlier.causes:
        cause = outlier.causes[0]
        where = place_text(cause.frame, capture.facts.get("cwd", ""), 100)
        text += (
            f"; {signed_size(cause.more_bytes)} of the difference at {where} in {printable(cause.frame.function, 60)}"
        )
    return text + (f", during {printable(outlier.phase, 60)}" if outlier.phase else "")


def answer(job: Job) -> Iterator[Text]:
    """The process that is furthest above the median, first of all."""
    if job.outliers:
        yield Text(f"uneven: {outlier_words(job.outliers[0])}", "bold")


def _without_untouched(job: Job) -> str:
    """That memory which was never touched does not count here; "" if there is none."""
    most = job.highest_untouched_bytes
    return f"; without memory that was never touched, at most {size(most)} of a process" if most else ""


def lines(job: Job) -> Iterator[Text]:
    """The uneven processes, and the phases."""
    if job.skew is not None:
        yield title("Skew", f"each peak is at its own time{_without_untouched(job)}")
        yield Text(f"  {skew_words(job)}")
        for outlier in job.outliers:
            yield Text(f"  {outlier_words(outlier)}")
    if job.phases:
        yield title("Phases of all processes", phases_note(job))
        yield Text(
            f"  {'rise':>11} {'median':>11} {'kept':>11} {'peak':>11} {'count':>9} {'processes':>9}  phase", "dim"
        )
    for phase in job.phases[:_PHASES_SHOWN]:
        yield _phase(phase)
    if len(job.phases) > _PHASES_SHOWN:
        yield Text(f"  … and {len(job.phases) - _PHASES_SHOWN:,} more names", "dim")


def phases_note(job: Job) -> str:
    """What the figures of phases are."""
    missing = f"; {job.phases_not_kept:,} earlier phases were not kept" if job.phases_not_kept else ""
    return (
        "of the whole process while a phase ran: highest above its start, over all and in the median; kept by one"
        f" process in all{missing}"
    )


def _phase(phase: PhaseCost) -> Text:
    figures = (phase.highest_rise_bytes, phase.median_rise_bytes, phase.kept_bytes, phase.highest_peak_bytes)
    unfinished = f" + {phase.unfinished}" if phase.unfinished else ""
    sizes, count = " ".join(f"{size(figure):>11}" for figure in figures), f"{phase.count:,}{unfinished}"
    name = printable(phase.name, 60), "bold"
    return Text.assemble(f"  {sizes} {count:>9} {phase.processes:>9,}  ", name, f"  {where_words(phase)}")


def where_words(phase: PhaseCost) -> str:
    """Where a name cost most: the process, and the line that held most there."""
    text = f"worst in {process_words(phase.worst)}"
    if phase.top is not None:
        text += f", most at {place_text(phase.top.frame, phase.worst.facts.get('cwd', ''), 100)}"
    return text
