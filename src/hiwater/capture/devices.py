"""The accelerators that the program used: their peaks, their figures over time, and the terms of their memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from hiwater._os.sizes import format_size
from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables, known

UNACCOUNTED, USED = "unaccounted", "used by this process"
QUANTITIES = ("allocated", "reserved", "used")


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """The terms of a device's memory at one moment, in nanoseconds since the recording began: pairs (term, bytes),
    None if unknown. The terms up to "unaccounted" add up to "used by this process"; those after it are of the whole
    card."""

    at_ns: int
    terms: tuple[tuple[str, int | None], ...]

    def __repr__(self) -> str:
        return f"<DeviceSnapshot at {self.at_ns / 1e9:.3f} s: libraries held {format_size(self.held_bytes)}>"

    @property
    def held_bytes(self) -> int:
        """The bytes of libraries: the sum of the terms before the unaccounted one."""
        return sum(count or 0 for _, count in takewhile(lambda term: term[0] != UNACCOUNTED, self.terms))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """One device as one library counts it, in bytes; None: not measured.

    *Allocated* is what the library handed out, *reserved* what it has from the driver, *used* what the driver counts
    for the process. If `exact` is false, the first two peaks are lower bounds, and `reason` says why. `at_ns` and
    the arrays in bytes are int64 with one element for each sample, ascending in time; −1 means unknown.
    `peaks_bytes[i]` is the peak between sample i − 1 and sample i."""

    name: str
    backend: str
    source: str
    exact: bool
    reason: str
    limit_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_used_bytes: int | None
    peak_at_ns: int
    at_ns: Ints
    allocated_bytes: Ints
    peaks_bytes: Ints
    reserved_bytes: Ints
    used_bytes: Ints
    snapshots: tuple[DeviceSnapshot, ...]

    def __repr__(self) -> str:
        peaks = ", ".join(f"{format_size(peak)} {quantity}" for quantity, peak in self.peaks()) or "not measured"
        return f"<DeviceMemory of {self.name!r} ({self.backend}): peak {peaks}>"

    @property
    def highest_snapshot(self) -> DeviceSnapshot | None:
        """The snapshot at which the library held most."""
        return max(self.snapshots, key=lambda one: one.held_bytes, default=None)

    def peaks(self) -> list[tuple[str, int]]:
        """(quantity, peak) of each quantity that was measured."""
        found = [(quantity, getattr(self, f"peak_{quantity}_bytes")) for quantity in QUANTITIES]
        return [(quantity, peak) for quantity, peak in found if peak is not None]


def read_devices(tables: Tables) -> tuple[DeviceMemory, ...]:
    """All devices, in the order in which they came into use; none in captures made without them."""
    rows = tables.get("devices")
    if rows is None:
        return ()
    return tuple(_device(tables, number, row) for number, row in enumerate(rows))


def _device(tables: Tables, number: int, row: Any) -> DeviceMemory:
    samples = _of(tables, "device_samples", number)
    allocated, peaks = _column(samples, "allocated_bytes"), _column(samples, "allocated_peak_bytes")
    return DeviceMemory(
        name=tables.string(int(row["name"])),
        backend=tables.string(int(row["backend"])),
        source=tables.string(int(row["source"])),
        exact=bool(row["exact"]),
        reason=tables.string(int(row["note"])),
        limit_bytes=known(row["limit_bytes"]),
        peak_allocated_bytes=known(row["peak_allocated_bytes"]),
        peak_reserved_bytes=known(row["peak_reserved_bytes"]),
        peak_used_bytes=known(row["peak_used_bytes"]),
        peak_at_ns=int(row["peak_at_ns"]),
        at_ns=_column(samples, "at_ns"),
        allocated_bytes=allocated,
        peaks_bytes=np.maximum(allocated, peaks),
        reserved_bytes=_column(samples, "reserved_bytes"),
        used_bytes=_column(samples, "used_bytes"),
        snapshots=_snapshots(tables, number),
    )


def _snapshots(tables: Tables, number: int) -> tuple[DeviceSnapshot, ...]:
    rows = _of(tables, "device_terms", number)
    found: list[tuple[int, list[tuple[str, int | None]]]] = []
    for row in rows:
        at_ns = int(row["at_ns"])
        if not found or found[-1][0] != at_ns:
            found.append((at_ns, []))
        found[-1][1].append((tables.string(int(row["term"])), None if row["bytes"] == -1 else int(row["bytes"])))
    return tuple(DeviceSnapshot(at_ns, tuple(terms)) for at_ns, terms in found)


def _of(tables: Tables, name: str, number: int) -> Any:
    rows = tables.get(name)
    return np.zeros(0, np.int64) if rows is None else rows[rows["device"] == number]


def _column(rows: Any, name: str) -> Ints:
    return rows[name].astype(np.int64) if len(rows) else np.zeros(0, np.int64)
