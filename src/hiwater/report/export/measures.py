"""What the exports to other programs' formats say of themselves: who wrote them, and what their figures measure."""

from __future__ import annotations

from hiwater import __version__
from hiwater.capture import Frame
from hiwater.report.export.collapsed import NO_FRAMES
from hiwater.report.request import Report

EXPORTER = f"hiwater {__version__}"
NO_FRAME = Frame(NO_FRAMES.decode("ascii"), "", 0)


def measures(report: Report) -> str:
    """What the figures of a report are, in one sentence: every export says it where its format has a place for it."""
    kind = "all counted kinds" if report.kind == "all" else f"{report.kind} memory"
    return (
        "allocated memory: requested bytes of live blocks, used anonymous mappings and shared memory that the process"
        f" made, {kind}, at {report.snapshot_words}; {report.exactness(report.snapshot)}"
    )
