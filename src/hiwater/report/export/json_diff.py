"""A comparison for machines. `diff.schema.json` in report/schemas is made from the type `DiffData`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TextIO, TypedDict

import numpy as np

from hiwater.analysis.diff import StackChanges, Verdict
from hiwater.capture import Capture, Frame, Snapshot
from hiwater.capture.comparison import Change, Changes, ChangeState, ComparedFigure
from hiwater.capture.document_types import Keywords, Signed, SignedFloat
from hiwater.capture.paths import Ints
from hiwater.report.diff_request import DiffReport, HeadlineData, headline_data, verdict_words
from hiwater.report.document import CountedKind, Ended, FrameData, KindAsked, Mode, Moment, data_of
from hiwater.report.stack_tables import PathNode, StackTables, node_text


class FigureData(TypedDict):
    """One quantity before and after; null where a capture does not have it."""

    before: Signed | None
    after: Signed | None
    change: Signed | None
    """after − before"""
    percent: SignedFloat | None
    """of before; null where that was nothing"""
    standard_error: int
    """upper bound for the standard error of the change; 0 when both captures recorded every block"""
    within_error: bool
    """whether the change is no more than two standard errors"""


class SideData(TypedDict):
    """One of the captures."""

    path: str
    pid: int
    argv: list[str]
    python: str
    mode: Mode
    sample_bytes: int
    ended: Ended
    at_ns: int
    resident_exact: bool
    resident_error_bytes: int


class DiffShown(TypedDict):
    """What `allocated`, `lines` and `rows` are about: --at, --kind and --by."""

    at: Moment
    kind: KindAsked
    by: Annotated[str, Keywords(enum=["stack", "function", "line", "file", "module"])]


class PeakFigures(TypedDict):
    """Both peaks: allocated are requested bytes of live blocks, used anonymous mappings and shared memory that the
    process made, resident what the process had in RAM."""

    allocated_bytes: FigureData
    resident_bytes: FigureData
    blocks: FigureData


class AllocatedFigures(TypedDict):
    """Allocated memory at the moments compared; bytes.change is the sum of rows[].change_bytes, and of
    lines[].change_bytes."""

    bytes: FigureData
    python_bytes: FigureData
    native_bytes: FigureData
    mapping_bytes: FigureData
    device_bytes: FigureData
    shared_bytes: FigureData


class EndFigures(TypedDict):
    """What was never freed."""

    allocated_bytes: FigureData


class TotalFigures(TypedDict):
    """Over the whole recordings."""

    allocations: FigureData
    allocated_bytes: FigureData
    temporaries: FigureData


class ProcessPair(TypedDict):
    """A process and its partner."""

    before: SideData
    after: SideData
    bytes: FigureData
    resident_bytes: FigureData


class VerdictData(TypedDict):
    """--fail-on-increase and what became of it."""

    kept: bool
    quantity: str
    bytes: int | None
    percent: float | None
    words: str


class ChangeFigures(TypedDict):
    """What changed, but for its call paths."""

    state: ChangeState
    change_bytes: Signed
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int
    before_total_bytes: int
    """with what it called"""
    after_total_bytes: int
    standard_error_bytes: int
    kind: CountedKind | None
    """null for rows that are not told apart by kind"""


class ChangeData(ChangeFigures):
    """A line, or a row of --by. One that is no stack has one frame."""

    before_node: int | None
    """place in `nodes` of the innermost frame as the earlier capture has it; null where it held nothing, or has no
    frame"""
    after_node: int | None
    """place in `nodes` of the innermost frame as the later capture has it; null where it held nothing, or has no
    frame"""


class DiffHead(TypedDict):
    """Everything but call paths and what changed."""

    schema: Literal["hiwater.diff/3"]
    headline: HeadlineData
    before: SideData
    after: SideData
    shown: DiffShown
    peak: PeakFigures
    allocated: AllocatedFigures
    end: EndFigures
    totals: TotalFigures
    duration_ns: FigureData
    processes: list[ProcessPair]
    """of merged captures, every process that has a partner, what grew most first; that one is what the other members
    are about"""
    notes: list[str]
    """what limits the comparison"""
    limit: VerdictData | None


class DiffData(DiffHead):
    """What `hiwater diff --format json` writes. Sizes are bytes, times are nanoseconds since each recording began.
    Members are only ever added."""

    frames: list[FrameData]
    """the distinct frames of all call paths"""
    nodes: list[PathNode]
    """the call paths of both captures, and the frames of lines and rows: each is a frame and the path of its caller"""
    lines: list[ChangeData]
    """every byte given to the innermost line of the user's own code; what changed alone, the largest change first"""
    rows: list[ChangeData]
    """by what --by names, stacks when it is not given; what changed alone, the largest change first"""


def write(report: DiffReport, stream: TextIO) -> None:
    """One object; lines and rows are written one by one, for there may be very many rows."""
    comparison = report.comparison
    kinds, totals = comparison.kinds, comparison.totals
    head: DiffHead = {
        "schema": "hiwater.diff/3",
        "headline": headline_data(comparison),
        "before": _side(comparison.before, comparison.before_snapshot),
        "after": _side(comparison.after, comparison.after_snapshot),
        "shown": {"at": comparison.after_snapshot.name, "kind": comparison.kind, "by": str(comparison.by)},
        "peak": {
            "allocated_bytes": figure_of(comparison.peak),
            "resident_bytes": figure_of(comparison.resident),
            "blocks": figure_of(totals["peak_blocks"]),
        },
        "allocated": {
            "bytes": figure_of(comparison.allocated),
            "python_bytes": figure_of(kinds["python"]),
            "native_bytes": figure_of(kinds["native"]),
            "mapping_bytes": figure_of(kinds["mapping"]),
            "device_bytes": figure_of(kinds["device"]),
            "shared_bytes": figure_of(kinds["shared"]),
        },
        "end": {"allocated_bytes": figure_of(totals["end_bytes"])},
        "totals": {
            "allocations": figure_of(totals["allocations"]),
            "allocated_bytes": figure_of(totals["allocated_bytes"]),
            "temporaries": figure_of(totals["temporaries"]),
        },
        "duration_ns": figure_of(totals["duration_ns"]),
        "processes": [
            {
                "before": _side(one.before, one.before_snapshot),
                "after": _side(one.after, one.after_snapshot),
                "bytes": figure_of(one.allocated),
                "resident_bytes": figure_of(one.resident),
            }
            for one in report.processes
        ],
        "notes": report.notes,
        "limit": None if report.verdict is None else _verdict(report.verdict),
    }
    stream.write(json.dumps(head, indent=1)[:-2])  # without the newline and brace that close it: more members follow
    tables = StackTables()
    members = [
        (name, changes, _nodes(changes, tables))
        for name, changes in (("lines", comparison.lines), ("rows", comparison.rows))
    ]
    stream.write(",\n ")
    tables.write(stream)
    for name, changes, nodes in members:
        stream.write(f',\n "{name}": [')
        stream.writelines(
            (",\n" if number else "\n") + _change(change, node)
            for number, (change, node) in enumerate(zip(_figures(changes), nodes, strict=True))
        )
        stream.write("]")
    stream.write("\n}\n")


def _figures(changes: Changes) -> Iterable[Change]:
    """The changes; those of stacks without their frames, which the tables have."""
    if isinstance(changes, StackChanges):
        return map(changes.figures, range(len(changes)))
    return changes


def _nodes(changes: Changes, tables: StackTables) -> Iterator[list[int]]:
    """For each change its place in the tables before and after, -1 where it held nothing or has no frame."""
    if isinstance(changes, StackChanges):
        columns = [_placed(changes, side, tables).tolist() for side in (0, 1)]
        return map(list, zip(*columns, strict=True))
    return iter([_only(change.before, tables) + _only(change.after, tables) for change in changes])


def _placed(changes: StackChanges, side: int, tables: StackTables) -> Ints:
    node = changes.nodes[:, side]
    return np.where(node >= 0, tables.add(changes.call_trees[side], node[node >= 0])[node], -1)


def _only(frames: tuple[Frame, ...], tables: StackTables) -> list[int]:
    """The place of a row's one frame."""
    return tables.add_frames(frames) or [-1]


def _side(capture: Capture, snapshot: Snapshot) -> SideData:
    return data_of(
        SideData,
        capture.process,
        path=str(capture.path),
        at_ns=snapshot.at_ns,
        resident_exact=capture.resident.exact,
        resident_error_bytes=capture.resident.error_bytes,
    )


def figure_of(figure: ComparedFigure) -> FigureData:
    """One quantity before and after, as plain data."""
    return data_of(FigureData, figure, standard_error=figure.standard_error_bytes, within_error=figure.is_within_error)


def _verdict(verdict: Verdict) -> VerdictData:
    limit = verdict.limit
    return data_of(VerdictData, verdict, bytes=limit.bytes, percent=limit.percent, words=verdict_words(verdict))


def _change(change: Change, node: list[int]) -> str:
    said = data_of(ChangeFigures, change, change_bytes=change.bytes, kind=change.kind or None)
    return f'{json.dumps(said)[:-1]}, "before_node": {node_text(node[0])}, "after_node": {node_text(node[1])}}}'
