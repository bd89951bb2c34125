"""The report for machines: `interface.md`'s JSON, described by `report.schema.json` in report/schemas.

A capture may hold a million stacks, and one stack tens of thousands of frames. So call paths are tables (see
`stack_tables.py`), and the list of stacks is written in chunks and never built.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

import numpy as np

from hiwater._os.signals import signal_name
from hiwater.analysis import own_allocators, whole_run
from hiwater.analysis.call_tree import Grouping, build_call_tree
from hiwater.analysis.job import Job, is_job
from hiwater.analysis.ranking import by
from hiwater.analysis.user_lines import UserLine, held_by, rank_lines
from hiwater.capture import Capture, DeviceMemory, DeviceSnapshot, ResidencySnapshot, Resident, Run, WatchedProcess
from hiwater.capture.at_once import Machine
from hiwater.capture.devices import QUANTITIES
from hiwater.capture.families import parents
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.residency_snapshots import highest
from hiwater.capture.snapshot import Holdings
from hiwater.report import advice, job_data
from hiwater.report.headline import parts
from hiwater.report.request import Report, run_of
from hiwater.report.stack_tables import StackTables, node_text
from hiwater.report.text.device_history import notes, source_words

Place = Callable[[int], dict[str, Any]]
"""What a summary says of a node of the capture: which call path it is."""
_STACKS_AT_ONCE = 50_000
_MOST_GENERATIONS = 100  # in one another: parsers of JSON have bounds; later ones are children of the last of these
_REFUSALS_LISTED = 100
_LINES_LISTED = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One report as an object; of several, each process as one of its parent's `children`. Without a parent that all
    have, a list."""
    family = _Family(reports)
    if len(family.roots) == 1:
        family.write(family.roots[0], stream)
    else:
        family.write_list(family.roots, stream)
    stream.write("\n")


class _Family:
    """Reports with who is whose child, and what the processes of each machine held at once."""

    def __init__(self, reports: Sequence[Report]) -> None:
        captures = [report.capture for report in reports]
        self._reports = reports
        self._children: dict[int, list[int]] = {}
        below: dict[int | None, list[int]] = {}
        for number, parent in enumerate(parents(captures)):
            below.setdefault(parent, []).append(number)
        self.roots = below.get(None, [])
        waiting = [(root, root, 0) for root in self.roots]
        for number, ancestor, generation in waiting:
            holder = number if generation < _MOST_GENERATIONS else ancestor
            self._children.setdefault(holder, []).extend(below.get(number, ()))
            waiting += [(child, holder, generation + 1) for child in below.get(number, ())]
        self._aggregate = dict[int, dict[str, Any]]()
        if len(reports) > 1:
            self._aggregate = {
                id(capture): aggregate
                for machine in run_of(reports).machines
                for aggregate in [_aggregate(machine)]
                for capture in machine.captures
            }

    def write_list(self, numbers: Sequence[int], stream: TextIO) -> None:
        stream.write("[")
        for place, number in enumerate(numbers):
            stream.write(",\n" if place else "\n")
            self.write(number, stream)
        stream.write("]")

    def write(self, number: int, stream: TextIO) -> None:
        report, tables = self._reports[number], StackTables()
        nodes = np.concatenate([report.holdings.node, _other_nodes(report.capture)])
        node = tables.add(build_call_tree(report.capture.tables), nodes)
        said = summary(report, lambda one: {"node": None if node[one] < 0 else int(node[one])})
        if report.run is not None and is_job(report.run.captures):
            said["role"] = job_data.role(report.capture)
        if id(report.capture) in self._aggregate:
            said["aggregate"] = self._aggregate[id(report.capture)]
        if number == self.roots[0] and report.run is not None and report.run.is_of_several:
            said["run"] = _run(report.run)
        head = json.dumps(said, indent=1)
        stream.write(head[:-2])  # without the newline and brace that close it: more members follow
        stream.write(",\n ")
        tables.write(stream)
        stream.write(',\n "stacks": [')
        stream.writelines(_stacks(report, node))
        stream.write('],\n "children": ')
        self.write_list(self._children.get(number, ()), stream)
        stream.write("\n}")


def _run(run: Run) -> dict[str, Any]:
    """What is known of processes without a report, and what a job is as a whole."""
    job = {"job": job_data.described(Job(run.captures))} if is_job(run.captures) else {}
    return job | {
        "captures": len(run.captures),
        "short": {
            "processes": len(run.short),
            "allocated_bytes": sum(one.total_bytes for one in run.short),
            "allocations": sum(one.total_blocks for one in run.short),
            "highest_peak_bytes": max((one.peak_bytes for one in run.short), default=0),
        },
        "short_processes": [asdict(one) for one in run.short],
        "unrecorded": [asdict(one) for one in run.unrecorded],
        "unreadable": list(run.unreadable),
    }


def _aggregate(machine: Machine) -> dict[str, Any]:
    """What the processes of one machine held at one instant, the same for each of them."""
    whole = whole_run.at_highest(machine)
    headline = None if whole is None else rank_lines(whole.tables, whole.peak.holdings()).headline
    return {
        "headline": None if headline is None else _line(headline),
        "host": machine.name,
        "processes": len(machine.captures),
        "allocated": None if machine.allocated is None else asdict(machine.allocated),
        "resident": None if machine.resident is None else asdict(machine.resident),
    }


def _other_nodes(capture: Capture) -> Ints:
    """The call paths that the summary tells of."""
    nodes = [block.node for snapshot in _highest_and_last(capture) if snapshot is not None for block in snapshot.large]
    return np.array(nodes + [marker.node for marker in capture.refusals[-_REFUSALS_LISTED:]], np.int64)


def _highest_and_last(capture: Capture) -> tuple[ResidencySnapshot | None, ResidencySnapshot | None]:
    """The residency snapshot with most resident memory, and the last one."""
    snapshots = capture.residency_snapshots
    return highest(snapshots), snapshots[-1] if snapshots else None


def summary(report: Report, place: Place) -> dict[str, Any]:
    """Everything but the stacks and children, as plain data. `place` gives the members that say which call path a
    node is."""
    capture, snapshot, peak = report.capture, report.snapshot, report.capture.peak
    kinds = peak.kind_bytes()
    highest, last = _highest_and_last(capture)
    said = {
        "schema": "hiwater.report/3",
        "process": _process(report),
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "blocks": peak.allocated_blocks,
            "at_ns": peak.at_ns,
            **{f"{kind}_bytes": kinds[kind] for kind in COUNTED_KINDS},
            "standard_error_bytes": capture.peak_error_bytes,
            "recorded_bytes": peak.recorded_bytes,
        },
        "resident": _resident(capture.resident),
        "breakdown": _residency_snapshot(highest, place),
        "breakdown_at_end": _residency_snapshot(last, place),
        "devices": _devices(capture),
        "device_histories": [_history(one) for one in ((capture,) if capture.device else capture.readable_histories)],
        "end": {"allocated_bytes": capture.end.allocated_bytes, "blocks": capture.end.allocated_blocks},
        "totals": asdict(capture.totals),
        "lost_events": capture.lost_events,
        "shortcomings": capture.shortcomings,
        "refusals": _refusals(capture, place),
        "pressure": [asdict(snapshot) for snapshot in capture.pressure[-1:]],
        "processes": [_watched(process) for process in capture.processes],
        "scopes": [asdict(scope) for scope in capture.scopes],
        "markers": [{"at_ns": marker.at_ns, "name": marker.name} for marker in capture.markers if marker.name],
        "problems": report.problems,
        "notes": own_allocators.notes(capture.peak),
        "mappings": _mappings(report),
        "shown": {
            "at": snapshot.name,
            "at_ns": snapshot.at_ns,
            "start_ns": snapshot.start_ns,
            "end_ns": snapshot.end_ns,
            "kind": report.kind,
            "bytes": report.holdings.total_bytes,
            "blocks": report.holdings.total_blocks,
            "error_bytes": snapshot.error_bytes,
        },
        **_lines(report),
        **advice.data(capture),
    }
    if report.by is not None and report.by != Grouping.stack:
        said["groups"] = _groups(report)
    return said


def _process(report: Report) -> dict[str, Any]:
    process = report.capture.process
    return {
        "pid": process.pid,
        "argv": list(process.argv),
        "python": process.python,
        "hiwater": process.hiwater,
        "mode": process.mode,
        "sample_bytes": process.sample_bytes,
        "ended": process.ended,
        "exit_code": process.exit_code,
        "signal": None if report.signal is None else signal_name(report.signal),
        "ended_by": process.ended_by,
        "words": report.ending_words,
        "stop_reason": process.stop_reason,
        "host": report.capture.facts.get("host", ""),
        "rank": report.capture.facts.get("rank"),
        "allocator": report.capture.facts.get("allocator"),
        "own_code": report.capture.own_code or None,
        "started_at": _date(process.started_unix_ns),
        "duration_ns": process.duration_ns,
        "parent_pid": process.parent_pid,
        "started_by": process.started_by,
        "inherited_bytes": process.inherited_bytes,
    }


def _date(unix_ns: int) -> str | None:
    """ISO 8601 in UTC; None for a time no calendar has."""
    try:
        return (_EPOCH + timedelta(microseconds=unix_ns // 1000)).isoformat()
    except OverflowError:
        return None


def _watched(process: WatchedProcess) -> dict[str, Any]:
    """A process that was watched from outside, without its samples: `hiwater.open(...).processes` has those."""
    return {
        "pid": process.pid,
        "parent_pid": process.parent_pid,
        "name": process.name,
        "command": list(process.command),
        "start_ns": process.start_ns,
        "end_ns": process.end_ns,
        "peak_bytes": process.peak_bytes,
        "exact": process.exact,
        "exit_status": process.exit_status,
        "samples": len(process.at_ns),
    }


def _resident(resident: Resident) -> dict[str, Any]:
    return {**asdict(resident), "source": resident.source}


def _devices(capture: Capture) -> list[dict[str, Any]]:
    """The devices that were in use; of a history alone, the one it is of."""
    if capture.device is None:
        return [_device(device) for device in capture.devices]
    unknown = dict.fromkeys(("limit_bytes", "peak_used_bytes", "breakdown", "breakdown_at_end"))
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
            **unknown,
        }
    ]


def _history(capture: Capture) -> dict[str, Any]:
    """The history of one device: apart from the figures of the process it belongs to."""
    return {
        "name": capture.device,
        "source": source_words(capture),
        "peak_allocated_bytes": capture.peak.allocated_bytes,
        "peak_at_ns": capture.peak.at_ns,
        "peak_reserved_bytes": capture.reserved_peak_bytes,
        "end_allocated_bytes": capture.end.allocated_bytes,
        "live_before_bytes": capture.live_before_bytes,
        "refusals": len(capture.refusals),
        "allocator": asdict(capture.allocator) if capture.allocator is not None else None,
        "notes": list(notes(capture)),
    }


def _refusals(capture: Capture, place: Place) -> dict[str, Any]:
    refused = capture.refusals
    last = [
        {"at_ns": marker.at_ns, "bytes": marker.value, "thread": marker.thread, **place(marker.node)}
        for marker in refused[-_REFUSALS_LISTED:]
    ]
    return {"count": len(refused), "last": last}


def _residency_snapshot(snapshot: ResidencySnapshot | None, place: Place) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    large = [
        {
            "bytes": block.bytes, "touched_bytes": block.touched_bytes, "from_malloc": block.from_malloc,
            "thread": block.thread, **place(block.node),
        }
        for block in snapshot.large
    ]  # fmt: skip
    parts = [asdict(part) for part in snapshot.parts]
    return {"at_ns": snapshot.at_ns, "resident_bytes": snapshot.resident_bytes, "parts": parts, "large": large}


def _device(device: DeviceMemory) -> dict[str, Any]:
    """A device without its samples: `hiwater.open(...).devices` has those."""
    snapshots = {
        "breakdown": device.highest_snapshot,
        "breakdown_at_end": device.snapshots[-1] if device.snapshots else None,
    }
    return {
        "name": device.name,
        "backend": device.backend,
        "source": device.source,
        "exact": device.exact,
        "reason": device.reason,
        "limit_bytes": device.limit_bytes,
        **{f"peak_{quantity}_bytes": getattr(device, f"peak_{quantity}_bytes") for quantity in QUANTITIES},
        "peak_at_ns": device.peak_at_ns,
        "samples": len(device.at_ns),
        **{name: None if snapshot is None else _device_snapshot(snapshot) for name, snapshot in snapshots.items()},
    }


def _device_snapshot(snapshot: DeviceSnapshot) -> dict[str, Any]:
    return {"at_ns": snapshot.at_ns, "terms": [{"name": name, "bytes": count} for name, count in snapshot.terms]}


def _mappings(report: Report) -> list[dict[str, Any]]:
    """Memory that is listed and not counted, at the moment shown: file-backed, shared, reserved, and pymalloc's
    arenas."""
    kinds, blocks = report.snapshot.kind_bytes(), report.snapshot.kind_blocks()
    return [{"class": kind, "bytes": kinds[kind], "blocks": blocks[kind]} for kind in KINDS[len(COUNTED_KINDS) :]]


def _lines(report: Report) -> dict[str, Any]:
    """The line to change first, and the ranking that it leads, of what is shown."""
    ranking = rank_lines(report.capture.tables, report.holdings)
    rows = ranking.rows
    return {
        "headline": None if ranking.headline is None else _line(ranking.headline),
        "answer": dict(
            zip(("before", "place", "after"), parts(report, ranking, report.capture.facts.get("cwd", "")), strict=True)
        ),
        "lines": {
            "rows": [_line(row) for row in rows[:_LINES_LISTED]],
            "rows_left_out": max(0, len(rows) - _LINES_LISTED),
            "imports_bytes": held_by(ranking.imports),
            "other_bytes": held_by(ranking.other),
            "untouched_bytes": ranking.untouched_bytes,
        },
    }


def _line(row: UserLine) -> dict[str, Any]:
    figures = asdict(row)
    return {**figures.pop("frame"), **figures, "group": row.group.value}


def _groups(report: Report) -> list[dict[str, Any]]:
    return [
        {
            **asdict(row.frame),
            "self_bytes": row.self_bytes,
            "self_blocks": row.self_blocks,
            "total_bytes": row.total_bytes,
            "self_standard_error_bytes": row.self_error_bytes,
            "total_standard_error_bytes": row.total_error_bytes,
        }
        for row in by(report.capture.tables, report.holdings, report.grouping)
    ]


def _stacks(report: Report, node: Ints) -> Iterator[str]:
    """The members of "stacks" as text, a chunk at a time. `node` is the number of each node in the tables."""
    held = report.holdings
    names, thread = report.capture.tables.paths.threads(held.node)
    threads = [json.dumps(name) for name in names]
    for first in range(0, len(held.node), _STACKS_AT_ONCE):
        part = slice(first, first + _STACKS_AT_ONCE)
        rows = zip(
            held.bytes[part].tolist(), held.blocks[part].tolist(), held.kind[part].tolist(), thread[part].tolist(),
            held.sampled[part].tolist(), node[held.node[part]].tolist(), strict=True,
        )  # fmt: skip
        members = (
            f'\n{{"bytes":{count},"blocks":{blocks},"kind":"{KINDS[kind]}","thread":{threads[of]},'
            f'{_error(held, sampled)}"node":{node_text(place)}}}'
            for count, blocks, kind, of, sampled, place in rows
        )
        yield ("," if first else "") + ",".join(members)


def _error(held: Holdings, sampled: int) -> str:
    """In a sampled recording every stack has its standard error; else none has, for there may be a million."""
    return f'"standard_error_bytes":{held.standard_error(sampled)},' if held.sample_bytes else ""
