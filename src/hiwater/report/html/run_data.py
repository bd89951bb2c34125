"""What a page of several processes has more than the captures: a row for each process, and all processes of a machine
at one instant.

The page has as many captures as fit: processes that were killed first, then those with the highest peaks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from hiwater.analysis import whole_run
from hiwater.analysis.compact import Limits
from hiwater.analysis.job import Job, is_job
from hiwater.capture import Capture
from hiwater.capture.at_once import Instant, Machine
from hiwater.capture.paths import Ints
from hiwater.capture.run_index import process_count
from hiwater.report import job_data
from hiwater.report.document import text_of
from hiwater.report.formatting import printable
from hiwater.report.html import page_document as document
from hiwater.report.html.columns import PackedColumns
from hiwater.report.request import Report, process_words, run_of
from hiwater.report.text import processes

_MOST_PACKED_BYTES = 2_000_000  # of all captures but the last one that is added
_MOST_SAMPLES = 1500
_PARTS = 4  # processes with a curve of their own in the sum over time

_OF_A_MACHINE = Limits(holders=20_000, nodes=60_000, entries=400_000)  # of all its processes together

Described = Callable[[Report, Limits | None], document.CaptureData]


def described(reports: Sequence[Report], columns: PackedColumns, describe: Described) -> document.PageData:
    """A page about several processes. `describe` describes one capture."""
    run = run_of(reports)
    wholes, without = _wholes(run.machines, columns, describe)
    used, chosen = sum(map(_size, wholes)) + columns.packed_bytes, dict[int, document.CaptureData]()
    for report in processes.dead_first(reports):
        if used > _MOST_PACKED_BYTES:
            break
        before = columns.packed_bytes
        chosen[id(report)] = describe(report, None)
        used += _size(chosen[id(report)]) + columns.packed_bytes - before
    kept = [report for report in reports if id(report) in chosen]
    place = {id(report): number for number, report in enumerate(kept)}
    rows = [_row(report, place.get(id(report))) for report in processes.dead_first(reports)]
    left = len(reports) - len(kept)
    notes = [*filter(None, [processes.program_rows(run)]), *processes.notes(run.short, run.unrecorded, run.unreadable)]
    if left:
        notes.append(
            f"{left:,} processes with lower peaks are in this table and in the sums, and have no graph here: --pid N"
            " makes a page of one"
        )
    if without:
        notes.append(f"{without:,} machines whose processes held less at once have no graph of all their processes")
    about: document.RunTable = {"processes": rows, "notes": notes}
    if is_job(run.captures):
        about["job"] = job_data.described(Job(run.captures))
        for row, report in zip(rows, processes.dead_first(reports), strict=True):
            row["role"] = job_data.role(report.capture)
    return {"schema": "hiwater.page/3", "captures": [*(chosen[id(report)] for report in kept), *wholes], "run": about}


def _wholes(
    machines: Sequence[Machine], columns: PackedColumns, describe: Described
) -> tuple[list[document.CaptureData], int]:
    """All processes of each machine, the highest sum first, for as many machines as fit; and how many machines are
    left out."""
    known = [machine for machine in machines if machine.allocated is not None and machine.is_of_several]
    known.sort(key=lambda machine: -machine.allocated.bytes if machine.allocated is not None else 0)
    found: list[document.CaptureData] = []
    for number, machine in enumerate(known):
        if sum(map(_size, found)) + columns.packed_bytes > _MOST_PACKED_BYTES // 2:
            return found, len(known) - number
        whole = _whole(machine, columns, describe)
        found += [] if whole is None else [whole]
    return found, 0


def _size(value: document.CaptureData) -> int:
    return len(zlib.compress(text_of(value, None).encode(), 1))


def _row(report: Report, place: int | None) -> document.RunProcess:
    capture, process = report.capture, report.capture.process
    return {
        "pid": process.pid,
        "program": printable(report.program, 200),
        "started_by": printable(process.started_by, 20),
        "ended": report.end_words,
        "is_dead": report.is_dead,
        "peak_bytes": max(0, capture.peak_bytes),
        "kept_bytes": max(0, capture.end_bytes),
        "resident_peak_bytes": max(0, capture.resident.program_peak_bytes),
        "resident_at_least": capture.resident.is_lower_bound,
        "inherited_bytes": process.inherited_bytes,
        "capture": place,
    }


def _whole(machine: Machine, columns: PackedColumns, describe: Described) -> document.CaptureData | None:
    """All processes of a machine at the instant of their highest sum, with the sum over time; None where they held
    nothing."""
    whole = whole_run.at_highest(machine)
    if whole is None:
        return None
    figures: list[document.WholeFigure] = [
        {"name": name, "bytes": instant.bytes, "words": _words(name, instant)}
        for name, instant in (("allocated", machine.allocated), ("resident", machine.resident))
        if instant is not None
    ]
    said = describe(Report(whole, whole.peak), _OF_A_MACHINE)
    said["timeline"] = _timeline(machine, whole, columns)
    said["whole"] = {
        "processes": process_count(machine.captures),
        "words": process_words(machine.captures),
        "host": printable(machine.name, 80),
        "figures": figures,
    }
    return said


def _words(name: str, instant: Instant) -> str:
    shared = f" · {processes.shared_words(instant)}" if name == "resident" else ""
    return processes.instant_words(instant) + shared


def _timeline(machine: Machine, whole: Capture, columns: PackedColumns) -> document.TimelineData:
    """What the processes had allocated over time: those with most at the instant, and all others as one."""
    start = whole.process.started_unix_ns
    instant = start + whole.peak.at_ns
    tracks = list(machine.allocated_tracks)
    times = np.unique(np.concatenate([[instant], *(np.append(track.at_ns, track.end_ns) for _, track in tracks)]))
    if len(times) > _MOST_SAMPLES:
        times = np.unique(np.append(np.linspace(times[0], times[-1], _MOST_SAMPLES).astype(np.int64), instant))
    tracks.sort(key=lambda one: -int(one[1].at(np.array([instant]))[0]))
    named: list[tuple[str, Ints]] = [
        (whole_run.process_name(capture), track.at(times)) for capture, track in tracks[:_PARTS]
    ]
    rest = tracks[_PARTS:]
    if rest:
        total = np.zeros(len(times), np.int64)
        for _, track in rest:
            total += track.at(times)
        named.append((f"{len(rest):,} other processes", total))
    return {
        "at_ns": columns.add(np.maximum(0, times - start)),
        "series": [{"name": printable(name, 60), "group": "part", "bytes": columns.add(held)} for name, held in named],
        "points": len(times),
        "limits": [],
    }
