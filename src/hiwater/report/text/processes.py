"""Several processes at a glance: each one's own peaks, the worst first, and what those of a machine held at one instant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TextIO

from rich.text import Text

from hiwater.analysis import process_tree
from hiwater.analysis.process_tree import Host, Instant
from hiwater.analysis.ranking import own_lines
from hiwater.report.formatting import printable, seconds, short_frame_text, size
from hiwater.report.request import Report
from hiwater.report.text import terminal


def worst_first(reports: Sequence[Report]) -> list[Report]:
    """The reports by their peaks, highest first."""
    return sorted(
        reports, key=lambda report: (-report.capture.peak.allocated_bytes, -report.capture.resident.peak_bytes)
    )


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """The overview that stands in front of the reports of several captures."""
    page = terminal.Page(stream)
    for line in _lines(reports, page.width):
        page.show(line)
    stream.write("\n")


def _lines(reports: Sequence[Report], width: int) -> Iterator[Text]:
    hosts = process_tree.hosts([report.capture for report in reports])
    processes, machines = _count(len(reports), "process"), _count(len(hosts), "machine")
    yield Text.assemble(("hiwater", "bold cyan"), "  ", (f"{processes} on {machines}", "bold"))
    yield Text.assemble(
        "\n", ("Peaks", "bold"), ("  each process's own peak, at its own time: they do not add up", "dim")
    )
    ordered = worst_first(reports)
    shown = ordered[: max(10, reports[0].top)]
    yield Text(f"  {'allocated':>11} {'resident':>11}  process", "dim")
    for number, report in enumerate(shown):
        yield _process(report, width, is_worst=number == 0)
    if len(ordered) > len(shown):
        yield Text(f"  {'':>11} {'':>11}  … and {len(ordered) - len(shown):,} with lower peaks", "dim")
    yield from _worst(ordered[0])
    several = [host for host in hosts if len(host.captures) > 1]
    if several:
        yield Text.assemble(
            "\n", ("At once", "bold"), ("  the highest sum at one instant, by the machine's clock", "dim")
        )
        for host in several:
            yield from _host(host)


def _count(number: int, what: str) -> str:
    plural = {"process": "processes"}.get(what, what + "s")
    return f"{number:,} {what if number == 1 else plural}"


def _process(report: Report, width: int, *, is_worst: bool) -> Text:
    capture = report.capture
    resident = size(capture.resident.peak_bytes)
    allocated = "–" if capture.is_timeline else size(capture.peak.allocated_bytes)
    words = f"{report.process}  {printable(report.program, 60)}"
    end = {"exit": "", "killed": " · was killed", "recording": " · still runs"}[capture.process.ended]
    code = f" · exit code {capture.process.exit_code}" if capture.process.exit_code else ""
    lasted = seconds(capture.process.duration_ns)
    room = max(30, width - 60)
    return Text.assemble(
        (f"  {allocated:>11} {resident:>11}  ", "bold red" if is_worst else ""),
        (words, "bold"), f"  {lasted}{code}{end}", (f"  {printable(str(capture.path), room)}", "dim"),
    )  # fmt: skip


def _worst(report: Report) -> Iterator[Text]:
    """The line that held most in the process whose peak is highest."""
    capture = report.capture
    lines = own_lines(capture.tables, capture.peak.holdings(), 1)
    if lines:
        where = short_frame_text(lines[0].frame, 100)
        yield Text(f"  highest: {report.process}, of it {size(lines[0].bytes)} at {where}")


def _host(host: Host) -> Iterator[Text]:
    yield Text(f"  {printable(host.name, 80)}", "bold")
    for name, instant in (("allocated", host.allocated), ("resident", host.resident)):
        if instant is not None:
            note = "  pages that processes share count for each" if name == "resident" else ""
            yield Text.assemble(f"    {name:<10} {size(instant.bytes):>11}  {instant_words(instant)}", (note, "dim"))


def instant_words(instant: Instant) -> str:
    """How far a sum can be trusted, and when it was."""
    at = datetime.fromtimestamp(instant.at_unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    error = (
        f"± {size(instant.error_bytes)} (samples {instant.spacing_ns / 1e6:.1f} ms apart)"
        if instant.error_bytes
        else "exact at its samples"
    )
    most = f", never more than {size(instant.at_most_bytes)}" if instant.at_most_bytes is not None else ""
    return f"{error}{most} · {_count(instant.processes, 'process')} at {at} UTC"
