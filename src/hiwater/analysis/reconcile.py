"""The terms between the allocated peak and the resident peak.

The two peaks are different quantities at different times. Allocated memory is what the program requested, touched or
not. Resident memory is all pages in RAM, whatever requested them. So the rest is a remainder, and proves nothing by
itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.capture import Capture


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Bytes, without hiwater's own memory. `rest_bytes` = resident peak − resident at the start − allocated peak.
    Above zero: pages that no figure counts (code and data of libraries, slack of allocators). Below zero: at least
    so many allocated bytes were not resident then."""

    allocated_bytes: int
    resident_start_bytes: int
    resident_peak_bytes: int
    rest_bytes: int


def reconcile(capture: Capture) -> Reconciliation:
    """The way from the allocated peak to the resident one. Device memory is none of the process's RAM and is left
    out."""
    kinds, resident = capture.peak.kind_bytes(), capture.resident
    in_ram = kinds["python"] + kinds["native"] + kinds["mapping"] + kinds["shared"]
    start, peak = resident.program_start_bytes, resident.program_peak_bytes
    return Reconciliation(in_ram, start, peak, peak - start - in_ram)
