"""How exact a figure is, in the one phrase that every message and report has for it (docs/glossary.md)."""

from __future__ import annotations

from hiwater._os.sizes import format_size

LOST = "not exact: events were lost"
MISSED = "at least: some calls could not be recorded"
NOT_MEASURED = "not measured"


def of_peak(*, exact: bool, error_bytes: int) -> str:
    """The phrase for a peak that the kernel counted: "exact" or "within 768 KiB"; "at least" for the highest sample."""
    if not exact:
        return "at least"
    return f"within {format_size(error_bytes)}" if error_bytes else "exact"


def of_estimate(standard_error_bytes: int) -> str:
    """The phrase for a figure from sampled allocations: "± 1.20 MiB (standard error)"."""
    return f"± {format_size(standard_error_bytes)} (standard error)"
