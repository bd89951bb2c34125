"""The report for machines: a `Report` of `report_document.py`, from which `report.schema.json` in report/schemas is
made.

A capture may hold a million stacks, and one stack tens of thousands of frames. So call paths are tables (see
`stack_tables.py`), and the list of stacks is written in chunks and never built.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TextIO

import numpy as np

from hiwater._os.signals import signal_name
from hiwater.analysis import own_allocators, whole_run
from hiwater.analysis.advice import findings_of
from hiwater.analysis.call_tree import Grouping, build_call_tree
from hiwater.analysis.job import Job, is_job
from hiwater.analysis.ranking import by
from hiwater.analysis.symbols import coverage
from hiwater.analysis.user_lines import Ranking, UserLine, held_by, rank_lines
from hiwater.capture import Capture, ResidencySnapshot, Run, WatchedProcess
from hiwater.capture.at_once import Machine
from hiwater.capture.families import parents
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.residency_snapshots import highest
from hiwater.capture.run_index import process_count
from hiwater.capture.snapshot import Holdings
from hiwater.report import advice, job_data
from hiwater.report.document import data_of, frame_data, text_of
from hiwater.report.export import json_devices
from hiwater.report.export import report_document as document
from hiwater.report.headline import parts
from hiwater.report.request import Report, run_of
from hiwater.report.stack_tables import StackTables, node_text

Place = Callable[[int], document.CallPath]
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
        self._aggregate = dict[int, document.AggregateData]()
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
        more: document.OfSeveral = {}
        if report.run is not None and is_job(report.run.captures):
            more["role"] = job_data.role(report.capture)
        if id(report.capture) in self._aggregate:
            more["aggregate"] = self._aggregate[id(report.capture)]
        if number == self.roots[0] and report.run is not None and report.run.is_of_several:
            more["run"] = _run(report.run)
        head = text_of({**said, **more})
        stream.write(head[:-2])  # without the newline and brace that close it: more members follow
        stream.write(",\n ")
        tables.write(stream)
        stream.write(',\n "stacks": [')
        stream.writelines(_stacks(report, node))
        stream.write('],\n "children": ')
        self.write_list(self._children.get(number, ()), stream)
        stream.write("\n}")


def _run(run: Run) -> document.RunData:
    """What is known of processes without a report, and what a job is as a whole."""
    said: document.RunData = {
        "captures": len(run.captures),
        "processes": process_count(run.captures, run.short),
        "short": {
            "processes": len(run.short),
            "allocated_bytes": sum(one.total_bytes for one in run.short),
            "allocations": sum(one.total_blocks for one in run.short),
            "highest_peak_bytes": max((one.peak_bytes for one in run.short), default=0),
        },
        "short_processes": list(run.short),
        "unrecorded": list(run.unrecorded),
        "unreadable": list(run.unreadable),
    }
    return {"job": job_data.described(Job(run.captures)), **said} if is_job(run.captures) else said


def _aggregate(machine: Machine) -> document.AggregateData:
    """What the processes of one machine held at one instant, the same for each of them."""
    whole = whole_run.at_highest(machine)
    headline = None if whole is None else rank_lines(whole.tables, whole.peak.holdings()).headline
    return {
        "headline": None if headline is None else _line(headline),
        "host": machine.name,
        "processes": process_count(machine.captures),
        "allocated": machine.allocated,
        "resident": machine.resident,
    }


def _other_nodes(capture: Capture) -> Ints:
    """The call paths that the summary tells of."""
    nodes = [block.node for snapshot in _highest_and_last(capture) if snapshot is not None for block in snapshot.large]
    return np.array(nodes + [marker.node for marker in capture.refusals[-_REFUSALS_LISTED:]], np.int64)


def _highest_and_last(capture: Capture) -> tuple[ResidencySnapshot | None, ResidencySnapshot | None]:
    """The residency snapshot with most resident memory, and the last one."""
    snapshots = capture.residency_snapshots
    return highest(snapshots), snapshots[-1] if snapshots else None


def summary(report: Report, place: Place) -> document.SummaryData:
    """Everything but the stacks and children. `place` gives the members that say which call path a
    node is."""
    capture, snapshot, peak = report.capture, report.snapshot, report.capture.peak
    kinds = peak.kind_bytes()
    highest, last = _highest_and_last(capture)
    ranking, findings = rank_lines(capture.tables, report.holdings), findings_of(capture)
    before, at, after = parts(report, ranking, capture.facts.get("cwd", ""))
    said: document.SummaryData = {
        "schema": "hiwater.report/3",
        "process": _process(report),
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "blocks": peak.allocated_blocks,
            "at_ns": peak.at_ns,
            "python_bytes": kinds["python"],
            "native_bytes": kinds["native"],
            "mapping_bytes": kinds["mapping"],
            "device_bytes": kinds["device"],
            "shared_bytes": kinds["shared"],
            "standard_error_bytes": capture.peak_error_bytes,
            "recorded_bytes": peak.recorded_bytes,
        },
        "resident": capture.resident,
        "breakdown": _residency_snapshot(highest, place),
        "breakdown_at_end": _residency_snapshot(last, place),
        "devices": json_devices.devices(capture),
        "device_histories": [
            json_devices.history(one) for one in ((capture,) if capture.device else capture.readable_histories)
        ],
        "end": {"allocated_bytes": capture.end.allocated_bytes, "blocks": capture.end.allocated_blocks},
        "totals": capture.totals,
        "lost_events": capture.lost_events,
        "shortcomings": capture.shortcomings,
        "refusals": _refusals(capture, place),
        "pressure": list(capture.pressure[-1:]),
        "processes": [_watched(process) for process in capture.processes],
        "scopes": list(capture.scopes),
        "markers": [{"at_ns": marker.at_ns, "name": marker.name} for marker in capture.markers if marker.name],
        "problems": report.problems,
        "notes": [*own_allocators.notes(capture.peak), *coverage.notes(capture.peak)],
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
        "headline": None if ranking.headline is None else _line(ranking.headline),
        "answer": {"before": before, "place": at, "after": after},
        "lines": _lines(ranking),
        "explain": [advice.data(finding) for finding in findings],
        "hints": [advice.hint(finding) for finding in findings],
    }
    if report.by is not None and report.by != Grouping.stack:
        said["groups"] = _groups(report)
    return said


def _process(report: Report) -> document.ProcessData:
    process, facts = report.capture.process, report.capture.facts
    return data_of(
        document.ProcessData,
        process,
        signal=None if report.signal is None else signal_name(report.signal),
        words=report.ending_words,
        host=facts.get("host", ""),
        rank=facts.get("rank"),
        allocator=facts.get("allocator"),
        own_code=report.capture.own_code or None,
        started_at=_date(process.started_unix_ns),
    )


def _date(unix_ns: int) -> str | None:
    """ISO 8601 in UTC; None for a time no calendar has."""
    try:
        return (_EPOCH + timedelta(microseconds=unix_ns // 1000)).isoformat()
    except OverflowError:
        return None


def _watched(process: WatchedProcess) -> document.WatchedData:
    """A process that was watched from outside, without its samples: `hiwater.open(...).processes` has those."""
    return data_of(document.WatchedData, process, samples=len(process.at_ns))


def _refusals(capture: Capture, place: Place) -> document.RefusalsData:
    refused = capture.refusals
    last: list[document.RefusalData] = [
        {"at_ns": marker.at_ns, "bytes": marker.value, "thread": marker.thread, **place(marker.node)}
        for marker in refused[-_REFUSALS_LISTED:]
    ]
    return {"count": len(refused), "last": last}


def _residency_snapshot(snapshot: ResidencySnapshot | None, place: Place) -> document.ResidencyData | None:
    if snapshot is None:
        return None
    large: list[document.LargeData] = [
        {
            "bytes": block.bytes, "touched_bytes": block.touched_bytes, "from_malloc": block.from_malloc,
            "thread": block.thread, **place(block.node),
        }
        for block in snapshot.large
    ]  # fmt: skip
    return data_of(document.ResidencyData, snapshot, large=large)


def _mappings(report: Report) -> list[document.ListedData]:
    """Memory that is listed and not counted, at the moment shown: file-backed, shared, reserved, and pymalloc's
    arenas."""
    kinds, blocks = report.snapshot.kind_bytes(), report.snapshot.kind_blocks()
    return [{"class": kind, "bytes": kinds[kind], "blocks": blocks[kind]} for kind in KINDS[len(COUNTED_KINDS) :]]


def _lines(ranking: Ranking) -> document.LinesData:
    rows = ranking.rows
    return {
        "rows": [_line(row) for row in rows[:_LINES_LISTED]],
        "rows_left_out": max(0, len(rows) - _LINES_LISTED),
        "imports_bytes": held_by(ranking.imports),
        "other_bytes": held_by(ranking.other),
        "untouched_bytes": ranking.untouched_bytes,
    }


def _line(row: UserLine) -> document.UserLineData:
    return data_of(document.UserLineData, row, **frame_data(row.frame))


def _groups(report: Report) -> list[document.GroupData]:
    return [
        data_of(
            document.GroupData,
            row,
            **frame_data(row.frame),
            self_standard_error_bytes=row.self_error_bytes,
            total_standard_error_bytes=row.total_error_bytes,
        )
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
