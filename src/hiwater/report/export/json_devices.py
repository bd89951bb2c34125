"""What the JSON report says of devices."""

from __future__ import annotations

from typing import TypedDict

from hiwater.allocator_state import AllocatorState
from hiwater.capture import Capture, DeviceMemory, DeviceSnapshot
from hiwater.capture.document_types import Signed
from hiwater.report.document import data_of
from hiwater.report.text.device_history import notes, source_words


class DeviceTermData(TypedDict):
    """A part of a device's memory."""

    name: str
    bytes: Signed | None
    """null: not known"""


class DeviceBreakdownData(TypedDict):
    """What the memory consisted of at one moment: the terms up to "unaccounted" add up to "used by this process"."""

    at_ns: int
    terms: list[DeviceTermData]


class DeviceData(TypedDict):
    """A device as one library counts it."""

    name: str
    """as the library names it: cuda:0"""
    backend: str
    """the library: torch"""
    source: str
    exact: bool
    """whether the allocated and reserved peaks miss nothing; else they are lower bounds"""
    reason: str
    """why a peak is not exact"""
    limit_bytes: int | None
    peak_allocated_bytes: int | None
    """what the library handed out; null: not measured"""
    peak_reserved_bytes: int | None
    """what the library held"""
    peak_used_bytes: int | None
    """what the driver counted for the process: highest sample"""
    peak_at_ns: int
    samples: int
    breakdown: DeviceBreakdownData | None
    """at the snapshot with the most; null if no snapshot was taken"""
    breakdown_at_end: DeviceBreakdownData | None
    """at the last snapshot"""


class DeviceHistoryData(TypedDict):
    """What an allocator recorded of its own requests."""

    name: str
    source: str
    peak_allocated_bytes: int
    """requested bytes, from allocation until the memory could be used again"""
    peak_at_ns: int
    peak_reserved_bytes: int | None
    end_allocated_bytes: int
    live_before_bytes: int
    """allocated when the history began: an earlier peak may have been higher"""
    refusals: int
    allocator: AllocatorState | None
    """what the allocator held at the end"""
    notes: list[str]


def devices(capture: Capture) -> list[DeviceData]:
    """The devices that were in use; of a history alone, the one it is of."""
    if capture.device is None:
        return [_device(device) for device in capture.devices]
    return [
        {
            "name": capture.device,
            "backend": capture.device.partition(":")[0],
            "source": source_words(capture),
            "exact": capture.live_before_bytes == 0,
            "reason": " · ".join(notes(capture)),
            "peak_allocated_bytes": capture.peak.allocated_bytes,
            "peak_reserved_bytes": capture.reserved_peak_bytes,
            "peak_at_ns": capture.peak.at_ns,
            "samples": 0,
            "limit_bytes": None,
            "peak_used_bytes": None,
            "breakdown": None,
            "breakdown_at_end": None,
        }
    ]


def history(capture: Capture) -> DeviceHistoryData:
    """The history of one device: apart from the figures of the process it belongs to."""
    return {
        "name": capture.device or "",
        "source": source_words(capture),
        "peak_allocated_bytes": capture.peak.allocated_bytes,
        "peak_at_ns": capture.peak.at_ns,
        "peak_reserved_bytes": capture.reserved_peak_bytes,
        "end_allocated_bytes": capture.end.allocated_bytes,
        "live_before_bytes": capture.live_before_bytes,
        "refusals": len(capture.refusals),
        "allocator": capture.allocator,
        "notes": list(notes(capture)),
    }


def _device(device: DeviceMemory) -> DeviceData:
    """A device without its samples: `hiwater.open(...).devices` has those."""
    return data_of(
        DeviceData,
        device,
        samples=len(device.at_ns),
        breakdown=_breakdown(device.highest_snapshot),
        breakdown_at_end=_breakdown(device.snapshots[-1] if device.snapshots else None),
    )


def _breakdown(snapshot: DeviceSnapshot | None) -> DeviceBreakdownData | None:
    if snapshot is None:
        return None
    return {"at_ns": snapshot.at_ns, "terms": [{"name": name, "bytes": count} for name, count in snapshot.terms]}
