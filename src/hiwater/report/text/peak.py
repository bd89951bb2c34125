"""The line of a report that says what was allocated at the peak, of a program's memory or a device's."""

from __future__ import annotations

from rich.text import Text

from hiwater.report.formatting import seconds, size
from hiwater.report.request import Report


def allocated_peak(report: Report) -> Text:
    """How much, how exact, in how many blocks and when."""
    peak = report.capture.peak
    exactness = report.exactness(peak)
    return Text.assemble(
        f"  allocated  {size(peak.allocated_bytes):>11}  ", (f"{exactness} · requested bytes", "green" if exactness == "exact" else "yellow"),
        f" · {peak.allocated_blocks:,} blocks · at {seconds(peak.at_ns)}",
    )  # fmt: skip
