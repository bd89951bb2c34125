"""Comma-separated values (RFC 4180), a row a stack or by what --by names; units are in the names of the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TextIO

from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.ranking import by
from hiwater.capture import Frame
from hiwater.capture.format import KINDS
from hiwater.report.export.collapsed import fragment
from hiwater.report.export.measures import NO_FRAME
from hiwater.report.formatting import printable
from hiwater.report.path_texts import PathTexts
from hiwater.report.request import Report
from hiwater.report.whole_stacks import WholeStacks, whole_stacks

_Columns = tuple[list[object], ...]
"""A piece of a table: one list for each of its columns."""

_HEAD, _PLACE = ("host", "pid"), ("function", "file", "line")
_HELD = ("kind", "thread", "held_bytes", "held_blocks", "standard_error_bytes")
_ERRORS = ("self_standard_error_bytes", "total_standard_error_bytes")
_STACK_COLUMNS = (*_HEAD, *_HELD, *_PLACE, "stack")
_GROUP_COLUMNS = (*_HEAD, "self_bytes", "self_blocks", "total_bytes", *_ERRORS, *_PLACE)


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One table with the rows of all reports; `pid` tells the processes apart. Names are escaped so that a row is one
    line.

    Recursion too deep to be written whole is written once. Raises ReportTooLarge.
    """
    parts = _tables(reports)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_columns_of(reports[0]))
    for part in parts:
        writer.writerows(zip(*part, strict=True))


def _columns_of(report: Report) -> tuple[str, ...]:
    """The names of the columns that this report's table has."""
    return _STACK_COLUMNS if report.by in (None, Grouping.stack) else _GROUP_COLUMNS


def _tables(reports: Sequence[Report]) -> Iterator[_Columns]:
    """The rows of the reports in pieces: stacks largest first, or rows by what was asked for. Raises ReportTooLarge
    at once."""
    if _columns_of(reports[0]) is not _STACK_COLUMNS:
        return chain.from_iterable(map(_groups, reports))
    ready = [(report, whole_stacks(report)) for report in reports]
    return chain.from_iterable(_stacks(report, whole) for report, whole in ready)


def _stacks(report: Report, whole: WholeStacks) -> Iterator[_Columns]:
    call_tree, held = whole.call_tree, whole.holdings(report.holdings)
    leaves = call_tree.place[held.node]
    names, thread = report.capture.tables.paths.threads(held.node)
    threads = [printable(name) for name in names]
    texts = PathTexts(call_tree, fragment, b";")
    for part in texts.chunks(leaves):
        frames = [call_tree.frames[int(call_tree.key[leaf])] if leaf else NO_FRAME for leaf in leaves[part].tolist()]
        anchors, pieces = texts.pieces_of(leaves[part])
        paths: list[object] = [
            (anchor + b"".join(row)).decode("utf-8") or NO_FRAME.function
            for anchor, row in zip(anchors, pieces.tolist(), strict=True)
        ]
        figures: tuple[list[object], ...] = (
            [KINDS[kind] for kind in held.kind[part].tolist()], [threads[number] for number in thread[part].tolist()],
            held.bytes[part].tolist(), held.blocks[part].tolist(),
            [held.standard_error(n) for n in held.sampled[part].tolist()],
        )  # fmt: skip
        values = (*_process_columns(report, len(frames)), *figures, *_frame_columns(frames), paths)
        yield values


def _groups(report: Report) -> Iterator[_Columns]:
    rows = by(report.capture.tables, report.holdings, report.grouping)
    figures: tuple[list[object], ...] = (
        [row.self_bytes for row in rows], [row.self_blocks for row in rows], [row.total_bytes for row in rows],
        [row.self_error_bytes for row in rows], [row.total_error_bytes for row in rows],
    )  # fmt: skip
    frames = _frame_columns([row.frame for row in rows])
    yield (*_process_columns(report, len(rows)), *figures, *frames)


def _process_columns(report: Report, length: int) -> tuple[list[object], list[object]]:
    capture = report.capture
    return [printable(capture.facts.get("host", ""))] * length, [capture.process.pid] * length


def _frame_columns(frames: Sequence[Frame]) -> tuple[list[object], list[object], list[object]]:
    return (
        [printable(frame.function) for frame in frames],
        [printable(frame.file) for frame in frames],
        [frame.line for frame in frames],
    )
