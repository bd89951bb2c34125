"""The summary of captures as OpenMetrics text, which Prometheus and GitLab's metrics reports read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from hiwater.capture.format import COUNTED_KINDS
from hiwater.report.export import exposition
from hiwater.report.export.exposition import Family, Sample
from hiwater.report.formatting import printable
from hiwater.report.request import Report

Labels = tuple[tuple[str, str], ...]

_HELD = "requested bytes of live blocks, used anonymous mappings and shared memory that the process made"
_FAMILIES = (
    Family("hiwater_capture", "info", "", "The recorded process."),
    Family("hiwater_peak_allocated_bytes", "gauge", "bytes", f"Highest allocated memory: {_HELD}."),
    Family("hiwater_peak_allocated_error_bytes", "gauge", "bytes", "Upper bound for the standard error of the allocated peak; 0 when every block was recorded."),
    Family("hiwater_peak_allocated_kind_bytes", "gauge", "bytes", "Allocated memory at its highest moment, by kind."),
    Family("hiwater_peak_allocated_blocks", "gauge", "", "Live blocks at the allocated peak."),
    Family("hiwater_end_allocated_bytes", "gauge", "bytes", "Allocated memory when the recording ended."),
    Family("hiwater_held_bytes", "gauge", "bytes", "Allocated memory of the kind and at the moment asked for."),
    Family("hiwater_peak_resident_bytes", "gauge", "bytes", "Highest resident memory (in RAM) of the process, without hiwater's own."),
    Family("hiwater_peak_resident_error_bytes", "gauge", "bytes", "Most by which the resident peak may be off, where it is exact."),
    Family("hiwater_peak_resident_exact", "gauge", "", "1 when the resident peak is the kernel's high-water mark, 0 when it is the highest sample."),
    Family("hiwater_peak_device_allocated_bytes", "gauge", "bytes", "Highest memory of a device that a library handed out."),
    Family("hiwater_peak_device_reserved_bytes", "gauge", "bytes", "Highest memory of a device that a library held."),
    Family("hiwater_peak_device_used_bytes", "gauge", "bytes", "Highest memory of a device that the driver counted for the process, of the samples."),
    Family("hiwater_peak_device_exact", "gauge", "", "1 when the device's allocated and reserved peaks miss nothing, 0 when they are lower bounds."),
    Family("hiwater_allocations", "counter", "", "Allocations over the whole recording."),
    Family("hiwater_frees", "counter", "", "Blocks freed over the whole recording."),
    Family("hiwater_allocated_bytes", "counter", "bytes", "Bytes allocated over the whole recording, freed or not."),
    Family("hiwater_lost_events", "counter", "", "Events that could not be recorded: figures may be off by what they were about."),
    Family("hiwater_duration_seconds", "gauge", "seconds", "How long was recorded."),
)  # fmt: skip
_UNKNOWN_TO_A_WATCHER = ("allocated", "held", "allocations", "frees", "lost_events")


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """All captures in one exposition; labels tell them apart."""
    samples = [sample for report in reports for sample in _samples(report)]
    exposition.write(_FAMILIES, samples, stream)


def _samples(report: Report) -> Iterator[Sample]:
    for name, more, value in _figures(report):
        is_unknown = report.capture.is_timeline and any(word in name for word in _UNKNOWN_TO_A_WATCHER)
        is_unknown |= report.capture.device is not None and "resident" in name
        if not is_unknown:
            yield Sample(name, (*_identity(report), *more), str(value))


def _identity(report: Report) -> Labels:
    capture = report.capture
    return (
        ("program", printable(report.title, 200)),
        ("host", printable(capture.facts.get("host", ""), 100)),
        ("pid", str(capture.process.pid)),
        ("capture", printable(capture.path.name, 200)),
    )


def _figures(report: Report) -> Iterator[tuple[str, Labels, int | float]]:
    capture, process, resident = report.capture, report.capture.process, report.capture.resident
    peak, totals = capture.peak, capture.totals
    names = ("python", "hiwater", "mode", "ended")
    yield "hiwater_capture", tuple((name, printable(getattr(process, name), 100)) for name in names), 1
    yield "hiwater_peak_allocated_bytes", (), peak.allocated_bytes
    yield "hiwater_peak_allocated_error_bytes", (), peak.standard_error_bytes
    for kind in COUNTED_KINDS:
        yield "hiwater_peak_allocated_kind_bytes", (("kind", kind),), peak.kind_bytes()[kind]
    yield "hiwater_peak_allocated_blocks", (), peak.allocated_blocks
    yield "hiwater_end_allocated_bytes", (), capture.end.allocated_bytes
    yield "hiwater_held_bytes", (("at", report.snapshot.name), ("kind", report.kind)), report.holdings.total_bytes
    yield "hiwater_peak_resident_bytes", (), resident.program_peak_bytes
    if resident.exact:
        yield "hiwater_peak_resident_error_bytes", (), resident.error_bytes
    yield "hiwater_peak_resident_exact", (), int(resident.exact)
    for device in capture.devices:
        labels = (("device", printable(device.name, 100)), ("backend", printable(device.backend, 100)))
        for quantity, value in device.peaks():
            yield f"hiwater_peak_device_{quantity}_bytes", labels, value
        yield "hiwater_peak_device_exact", labels, int(device.exact)
    yield "hiwater_allocations", (), totals.allocations
    yield "hiwater_frees", (), totals.frees
    yield "hiwater_allocated_bytes", (), totals.allocated_bytes
    yield "hiwater_lost_events", (), capture.lost_events
    yield "hiwater_duration_seconds", (), process.duration_ns / 1e9
