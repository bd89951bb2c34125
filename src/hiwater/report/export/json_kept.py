"""What is still live, for machines. `kept.schema.json` in report/schemas is made from the type `KeptData`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TextIO, TypedDict

from hiwater.analysis.ages import Survivors, snapshots, survivors
from hiwater.analysis.user_lines import Group
from hiwater.capture.document_types import Keywords
from hiwater.report.document import FrameData, KindAsked, data_of, frame_data, text_of
from hiwater.report.request import Report


class KeptLine(FrameData):
    """A line of which memory is live."""

    group: Group
    """a line of code; a line at which a thread waited for most of it; a line that imported something; memory that no
    line of the program asked for"""
    bytes: Annotated[int, Keywords(minimum=1)]
    blocks: int
    by_age: Annotated[list[int], Keywords(minItems=4, maxItems=4)] | None
    """of bytes, what each quarter of the recording's time allocated, the first one first; of the rest it is not known;
    null without snapshots"""
    types: list[str]
    """of the first lines (--top), the types of the objects, most bytes first, if the capture has a search for
    holders"""
    held_by: str | None
    """of the first lines (--top), what holds most; null if it is not known"""


class KeptData(TypedDict):
    """What `hiwater report --kept --format json` writes for a capture, and for each of several in a list. Sizes are
    bytes. Members are only ever added."""

    schema: Literal["hiwater.kept/1"]
    pid: int
    argv: list[str]
    at_ns: int
    """the end, in nanoseconds since the recording began"""
    kind: KindAsked
    snapshots: int
    """from how many snapshots the ages are known; 0 if they are not known"""
    bytes: int
    """the sum of the lines"""
    blocks: int
    lines: list[KeptLine]
    """all lines of which memory is live, most bytes first"""


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One capture as an object, several as a list."""
    said = [_capture(report) for report in reports]
    stream.write(text_of(said[0] if len(said) == 1 else said) + "\n")


def _capture(report: Report) -> KeptData:
    rows = survivors(report.snapshot, report.kind, described=report.top)
    taken = snapshots(report.capture.tables)
    return {
        "schema": "hiwater.kept/1",
        "pid": report.capture.process.pid,
        "argv": list(report.capture.process.argv),
        "at_ns": report.snapshot.at_ns,
        "kind": report.kind,
        "snapshots": 0 if taken is None else len(taken),
        "bytes": sum(row.bytes for row in rows),
        "blocks": sum(row.blocks for row in rows),
        "lines": [_line(row) for row in rows],
    }


def _line(row: Survivors) -> KeptLine:
    known = {"by_age": row.by_age or None, "held_by": row.held_by or None}
    return data_of(KeptLine, row, **frame_data(row.frame), **known)
