"""The accelerators that the program used: their peaks, their figures in time, and what their memory consisted of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables

UNACCOUNTED, USED = "unaccounted", "used by this process"
QUANTITIES = ("allocated", "reserved", "used")


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """What a device's memory consisted of at one moment, nanoseconds since the recording began: (term, bytes), None where not known.
    The terms up to "unaccounted" add up to "used by this process"; those after it are the whole card's."""

    at_ns: int
    terms: tuple[tuple[str, int | None], ...]

    @property
    def held_bytes(self) -> int:
        """What libraries held: the terms before the unaccounted."""
        return sum(count or 0 for _, count in takewhile(lambda term: term[0] != UNACCOUNTED, self.terms))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """One device as one library counts it, in bytes; None: not measured. *Allocated* is what the library handed out, *reserved* what it holds,
    *used* what the driver counts for the process. `exact` is about the first two peaks; where it is false they are lower bounds, and
    `reason` says why. `peaks_bytes[i]` of a curve is the highest between the sample before and sample i; −1 is not known."""

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

    @property
    def highest_snapshot(self) -> DeviceSnapshot | None:
        """The snapshot at which the library held most."""
        return max(self.snapshots, key=lambda one: one.held_bytes, default=None)

    def peaks(self) -> list[tuple[str, int]]:
        """(quantity, peak) of those that were measured."""
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
        limit_bytes=_known(row["limit_bytes"]),
        peak_allocated_bytes=_known(row["peak_allocated_bytes"]),
        peak_reserved_bytes=_known(row["peak_reserved_bytes"]),
        peak_used_bytes=_known(row["peak_used_bytes"]),
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


def _known(value: Any) -> int | None:
    return int(value) if value >= 0 else None
