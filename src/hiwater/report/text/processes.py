"""An overview of several processes: the line that matters most, a table of the processes, and the sum of a machine's
processes at one instant."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TextIO

from rich.text import Text

from hiwater.analysis import whole_run
from hiwater.analysis.job import Job, is_job, limit_share
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture import Run, ShortProcess, Unrecorded
from hiwater.capture.at_once import Instant, Machine
from hiwater.capture.limits import suspects
from hiwater.capture.run_index import process_count
from hiwater.report.formatting import printable, seconds, size
from hiwater.report.headline import answer
from hiwater.report.request import Report, process_words, run_of
from hiwater.report.text import job as job_text
from hiwater.report.text import limits, terminal

_REASONS_SHOWN = 5
_BEFELL_SHOWN = 3
_MACHINES_SHOWN = 10
_SHOWN_NS = 50_000  # less is 0.0 ms
_FIGURE = 11  # the width of a column


def worst_first(reports: Sequence[Report]) -> list[Report]:
    """The reports by their peaks, highest first."""
    return sorted(reports, key=lambda report: (-report.capture.peak_bytes, -report.capture.resident.program_peak_bytes))


def dead_first(reports: Sequence[Report]) -> list[Report]:
    """The reports of processes that failed because memory was refused, of those that a signal ended, and of the
    others, each by their peaks. When one process of a job fails, its launcher ends the others by a signal."""
    return sorted(worst_first(reports), key=lambda report: (not report.is_out_of_memory, not report.is_dead))


def write(reports: Sequence[Report], stream: TextIO, *, shows_one: bool = False) -> None:
    """Write the overview that precedes the reports of several processes, or the report of the one with the highest
    peak."""
    page = terminal.Page(stream, reports[0].capture.facts.get("cwd", ""))
    for line in _lines(reports, page):
        page.show(line)
    if shows_one and len(reports) > 1:
        page.show(
            Text(
                "\nBelow is the report of the process with the highest peak; --full has all of them, --pid N has one.",
                "dim",
            )
        )
    stream.write("\n")


def _lines(reports: Sequence[Report], page: terminal.Page) -> Iterator[Text]:
    run = run_of(reports)
    job = Job(run.captures) if is_job(run.captures) else None
    (first, style), *rest = first_lines(reports, run, page.folder)
    yield Text.assemble(("hiwater", "bold cyan"), "  ", (first, style))
    if job is not None:
        yield from job_text.answer(job)
    yield from (Text(text, style) for text, style in rest)
    rows = program_rows(run)
    yield terminal.title("Processes", f"each peak is at its own time: they do not add up{rows and f'; {rows}'}")
    yield from _table(reports, run, page)
    yield from _not_recorded(run.unrecorded)
    for problem in _unreadable(run.unreadable):
        yield Text.assemble(("  ! ", "bold yellow"), problem)
    if job is not None:
        yield from job_text.lines(job)
    several = [machine for machine in run.machines if machine.is_of_several]
    if several:
        yield terminal.title(
            "At once", "the highest sum at one instant on each machine, by its clock; sums of machines do not add up"
        )
        for machine in several[:_MACHINES_SHOWN]:
            yield from _machine(machine)
        if len(several) > _MACHINES_SHOWN:
            yield Text(f"  … and {len(several) - _MACHINES_SHOWN:,} more machines", "dim")


def first_lines(reports: Sequence[Report], run: Run, folder: str) -> Iterator[tuple[str, str]]:
    """How many processes there were, what befell them, and the answers, each with its style. `hiwater run` ends with
    the same lines. Paths are relative to `folder`."""
    processes = process_words([report.capture for report in reports], run.short)
    machines = _count(len(run.machines), "machine")
    running = sum(report.capture.process.ended == "recording" for report in reports)
    still = f", {running:,} of them still running" if running else ""
    missing = f", {len(run.unrecorded):,} more not recorded" if run.unrecorded else ""
    yield f"{processes} on {machines}{still}{missing}", "bold"
    told = [text for report in dead_first(reports) if (text := _befell(report, folder))]
    yield from ((text, "bold red") for text in told[:_BEFELL_SHOWN])
    if len(told) > _BEFELL_SHOWN:
        yield f"… and {len(told) - _BEFELL_SHOWN:,} more that were killed or refused memory", "bold red"
    for place, text in enumerate(answers(run, worst_first(reports)[0], folder)):
        yield text, "" if place else "bold"
    sums = [one.resident for one in run.machines if one.resident is not None and one.is_of_several]
    if sums:
        most = max(sums, key=lambda one: one.bytes)
        yield f"{size(most.bytes)} resident at once, {instant_words(most)}; {shared_words(most)}", ""


def program_rows(run: Run) -> str:
    """What the rows of a table are where there is more than one of a process; else ""."""
    is_one_each = process_count(run.captures) == len(run.captures)
    return "" if is_one_each else "a process has a row for each program that it executed"


def _befell(report: Report, folder: str) -> str:
    """The end of a process that did not come as usual, or memory that it was refused, in one sentence; "" otherwise.
    Who starts workers ends them by SIGTERM, so that says nothing but of the first process."""
    refused = limits.refused_sentence(report, folder)
    is_usual = report.signal == signal.SIGTERM and report.capture.process.started_by != ""
    if not refused and (is_usual or not report.is_dead):
        return ""
    return "; ".join(filter(None, (report.ending_words, refused, *suspects(report.capture.tables))))


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("process") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def answers(run: Run, worst: Report, folder: str) -> Iterator[str]:
    """What the processes of the machine with the highest sum held at once, and the line with most of it over all of
    them. Then the process with the highest peak, which is `worst`, and the line that held most in it."""
    if run.highest is not None and run.highest.allocated is not None and run.highest.is_of_several:
        yield _at_once(run.highest, run.highest.allocated, folder)
    capture = worst.capture
    lead = f"highest: {worst.process} ({printable(worst.program, 60)}), peak {size(capture.peak_bytes)}"
    ranking = rank_lines(capture.tables, capture.peak.holdings())
    yield answer(lead, ranking, capture.facts.get("cwd", folder))


def _at_once(machine: Machine, instant: Instant, folder: str) -> str:
    whole = whole_run.at_highest(machine)
    text = f"{size(instant.bytes)} allocated at once by {_count(instant.processes, 'process')}"
    if whole is None:
        return text
    return answer(text, rank_lines(whole.tables, whole.peak.holdings()), folder, " over all of them")


def _table(reports: Sequence[Report], run: Run, page: terminal.Page) -> Iterator[Text]:
    """The processes that died first, then by their peaks; children without a capture in one row."""
    ordered = dead_first(reports)
    inherits = any(report.capture.process.inherited_bytes for report in reports)
    names = ("peak", "kept", "resident", *(("inherited",) if inherits else ()))
    yield Text(f"  {' '.join(f'{name:>{_FIGURE}}' for name in names)}  process", "dim")
    shown = ordered[: max(10, reports[0].top)]
    of_job = is_job(run.captures)
    for report in shown:
        yield _row(report, page, inherits=inherits)
        if of_job:
            yield from job_text.more_of(report)
    blank = " " * ((_FIGURE + 1) * len(names) - 1)
    if len(ordered) > len(shown):
        yield Text(f"  {blank}  … and {len(ordered) - len(shown):,} with lower peaks", "dim")
    if run.short:
        yield Text(f"  {blank}  {short_words(run.short)}")


def _row(report: Report, page: terminal.Page, *, inherits: bool) -> Text:
    capture, process = report.capture, report.capture.process
    figures = ["–", "–"] if capture.is_timeline else [size(capture.peak_bytes), size(capture.end_bytes)]
    figures.append(report.resident_words)
    if inherits:
        figures.append(size(process.inherited_bytes) if process.started_by == "fork" else "–")
    how = {"fork": " (forked)", "exec": " (started)"}.get(process.started_by, "")
    end = report.end_words
    used = limit_share(capture)
    of_limit = "" if used is None else f"  {used:.0%} of its limit"
    return Text.assemble(
        (f"  {' '.join(f'{figure:>{_FIGURE}}' for figure in figures)}  ", "bold red" if report.is_dead else ""),
        (f"{report.process}  {printable(report.program, 60)}{how}", "bold"),
        f"  {seconds(process.duration_ns)}{of_limit}",
        (f"  {end}" if end else "", "bold red" if report.is_dead else ""),
        (f"  {printable(capture.path.name, max(30, page.width - 60))}", "dim"),
    )  # fmt: skip


def short_words(short: Sequence[ShortProcess]) -> str:
    """The children without a capture, in one sentence."""
    total, count = sum(one.total_bytes for one in short), sum(one.total_blocks for one in short)
    highest = max(short, key=lambda one: one.peak_bytes)
    failed = sum(one.exit_code > 0 for one in short)  # −1: not known
    codes = f", {failed:,} with an exit code other than 0" if failed else ""
    return (
        f"{_count(len(short), 'short process')}: allocated {size(total)} in {count:,} blocks in all, "
        f"highest peak {size(highest.peak_bytes)} (process {highest.pid}){codes}"
    )


def notes(
    short: Sequence[ShortProcess], unrecorded: Sequence[Unrecorded], unreadable: Sequence[str] = ()
) -> Iterator[str]:
    """What is known of processes without a report, in sentences."""
    if short:
        yield short_words(short)
    for reason in _reasons(unrecorded):
        yield f"not recorded: {reason}"
    yield from _unreadable(unreadable)


def _not_recorded(unrecorded: Sequence[Unrecorded]) -> Iterator[Text]:
    """The processes that are in no figure."""
    if unrecorded:
        yield terminal.title("Not recorded", "in no figure")
    for reason in _reasons(unrecorded):
        yield Text(f"  {reason}")


def _reasons(unrecorded: Sequence[Unrecorded]) -> Iterator[str]:
    """The processes by program and reason."""
    pids: dict[tuple[str, str], list[int]] = {}
    for one in unrecorded:
        pids.setdefault((one.program, one.why), []).append(one.pid)
    for (program, why), members in list(pids.items())[:_REASONS_SHOWN]:
        known = printable(", ".join(str(pid) for pid in members if pid), 40)  # 0: not known
        yield (
            f"{_count(len(members), 'process')} of {printable(program, 80)}:"
            f" {printable(why, 120)}{known and f' ({known})'}"
        )
    if len(pids) > _REASONS_SHOWN:
        yield f"… and {len(pids) - _REASONS_SHOWN:,} more programs or reasons"


def _unreadable(problems: Sequence[str]) -> list[str]:
    return [printable(f"this capture cannot be read: {problem}", 300) for problem in problems[:_REASONS_SHOWN]]


def _machine(machine: Machine) -> Iterator[Text]:
    yield Text(f"  {printable(machine.name, 80)}", "bold")
    for name, instant in (("allocated", machine.allocated), ("resident", machine.resident)):
        if instant is not None:
            note = f"  {shared_words(instant)}" if name == "resident" else ""
            yield Text.assemble(f"    {name:<10} {size(instant.bytes):>11}  {instant_words(instant)}", (note, "dim"))


def shared_words(instant: Instant) -> str:
    """How pages that processes share count in a sum of resident memory."""
    if not instant.shared_once:
        return "pages that processes share count for each"
    if instant.shared_once == instant.processes:
        return "pages that processes share count once (PSS)"
    others = instant.processes - instant.shared_once
    return (
        f"pages that processes share count once (PSS) in {_count(instant.shared_once, 'process')},"
        f" and in full in {_count(others, 'other')}"
    )


def instant_words(instant: Instant) -> str:
    """The accuracy of a sum, and its time."""
    at = datetime.fromtimestamp(instant.at_unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    # Without two samples around the instant, the error is what was never read: no distance explains it.
    apart = f" (samples {instant.spacing_ns / 1e6:.1f} ms apart)" if instant.spacing_ns >= _SHOWN_NS else ""
    error = f"± {size(instant.error_bytes)}{apart}" if instant.error_bytes else "exact at its samples"
    most = f", never more than {size(instant.at_most_bytes)}" if instant.at_most_bytes is not None else ""
    return f"{error}{most} · {_count(instant.processes, 'process')} at {at} UTC"
