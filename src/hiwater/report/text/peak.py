"""The lines of a report with the allocated and the resident peak, each with its accuracy."""

from __future__ import annotations

from rich.text import Text

from hiwater.report.diff_request import resident_exactness
from hiwater.report.formatting import seconds, size
from hiwater.report.request import Report


def allocated_peak(report: Report) -> Text:
    """The peak of live bytes, its accuracy, its blocks and its time."""
    peak = report.capture.peak
    exactness = report.exactness(peak)
    return Text.assemble(
        f"  allocated  {size(peak.allocated_bytes):>11}  ",
        (f"{exactness} · requested bytes", "green" if exactness == "exact" else "yellow"),
        f" · {peak.allocated_blocks:,} blocks · at {seconds(peak.at_ns)}",
    )  # fmt: skip


def resident_peak(report: Report) -> Text:
    """The program's peak of resident memory, its source, and the overhead of hiwater."""
    resident = report.capture.resident
    style = "green" if resident.exact else "yellow"
    source = " · kernel's high-water mark" if resident.exact else ""
    overhead = f" · and {size(resident.overhead_bytes)} overhead of hiwater" if resident.overhead_bytes else ""
    peak = f"  resident   {size(resident.program_peak_bytes):>11}  "
    return Text.assemble(peak, (resident_exactness(report.capture), style), source, overhead)


def at_start_and_end(report: Report) -> Text:
    """Resident memory when the recording began and when it ended."""
    resident = report.capture.resident
    return Text(
        f"{'':26}{size(resident.program_start_bytes)} at the start, {size(resident.program_end_bytes)} at the end",
        "dim",
    )
