"""What the exports to other programs' formats share: what a report measures in words, and its rows as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, TextIO

from hiwater import __version__
from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.ranking import by
from hiwater.capture import Frame
from hiwater.capture.format import KINDS
from hiwater.report.export.collapsed import NO_FRAMES, fragment
from hiwater.report.formatting import printable
from hiwater.report.path_texts import PathTexts
from hiwater.report.request import Report
from hiwater.report.whole_stacks import WholeStacks, whole_stacks

EXPORTER = f"hiwater {__version__}"
NO_FRAME = Frame(NO_FRAMES.decode("ascii"), "", 0)


def measures(report: Report) -> str:
    """What the figures of a report are, in one sentence: every export says it where its format has a place for it."""
    kind = "all counted kinds" if report.kind == "all" else f"{report.kind} memory"
    return (
        f"allocated memory: requested bytes of live blocks, used anonymous mappings and shared memory that the process made, {kind}, at {report.snapshot_words};"
        f" {report.exactness(report.snapshot)}"
    )


def bytes_below(stream: TextIO) -> BinaryIO:
    """The stream of bytes that lies under a stream of text: where a binary format goes."""
    stream.flush()
    below: BinaryIO = stream.buffer  # a StringIO has none, and nobody writes binary into one
    return below


# Rows and columns

_HEAD, _PLACE = ("host", "pid"), ("function", "file", "line")
_HELD = ("kind", "thread", "held_bytes", "held_blocks", "standard_error_bytes")
_ERRORS = ("self_standard_error_bytes", "total_standard_error_bytes")
STACK_COLUMNS = (*_HEAD, *_HELD, *_PLACE, "stack")
GROUP_COLUMNS = (*_HEAD, "self_bytes", "self_blocks", "total_bytes", *_ERRORS, *_PLACE)
COLUMN_WORDS = {
    "host": "name of the machine",
    "pid": "process id there",
    "kind": "kind of memory: python, native, mapping or device",
    "thread": "name of the thread",
    "held_bytes": "bytes held by this stack",
    "held_blocks": "blocks held by this stack",
    "self_bytes": "bytes that this asked for itself",
    "self_blocks": "blocks that this asked for itself",
    "total_bytes": "bytes that this and what it called asked for, each byte once",
    "standard_error_bytes": "upper bound for the standard error of held_bytes; 0 when every block was recorded",
    "self_standard_error_bytes": "upper bound for the standard error of self_bytes; 0 when every block was recorded",
    "total_standard_error_bytes": "upper bound for the standard error of total_bytes; 0 when every block was recorded",
    "function": "function: of the innermost frame, for a stack",
    "file": "file of that function",
    "line": "line in that file; 0 for what is not Python code",
    "stack": "call path, root first: function (file:line);function (file:line)",
}
UNITS = {
    name: "bytes" if name.endswith("_bytes") else "blocks"
    for name in COLUMN_WORDS
    if name.endswith(("_bytes", "_blocks"))
}


@dataclass(frozen=True, slots=True)
class Columns:
    """A piece of a table: one list for each of its names."""

    names: tuple[str, ...]
    values: tuple[list[object], ...]


def columns_of(report: Report) -> tuple[str, ...]:
    """The names of the columns that this report's table has."""
    return STACK_COLUMNS if report.by in (None, Grouping.stack) else GROUP_COLUMNS


def tables(reports: Sequence[Report]) -> Iterator[Columns]:
    """The rows of the reports in pieces: stacks largest first, or rows by what was asked for. Raises ReportTooLarge at once."""
    if columns_of(reports[0]) is not STACK_COLUMNS:
        return chain.from_iterable(map(_groups, reports))
    ready = [(report, whole_stacks(report)) for report in reports]
    return chain.from_iterable(_stacks(report, whole) for report, whole in ready)


def _stacks(report: Report, whole: WholeStacks) -> Iterator[Columns]:
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
            held.bytes[part].tolist(), held.blocks[part].tolist(), [held.standard_error(n) for n in held.sampled[part].tolist()],
        )  # fmt: skip
        values = (*_process_columns(report, len(frames)), *figures, *_frame_columns(frames), paths)
        yield Columns(STACK_COLUMNS, values)


def _groups(report: Report) -> Iterator[Columns]:
    rows = by(report.capture.tables, report.holdings, report.grouping)
    figures: tuple[list[object], ...] = (
        [row.self_bytes for row in rows], [row.self_blocks for row in rows], [row.total_bytes for row in rows],
        [row.self_error_bytes for row in rows], [row.total_error_bytes for row in rows],
    )  # fmt: skip
    frames = _frame_columns([row.frame for row in rows])
    yield Columns(GROUP_COLUMNS, (*_process_columns(report, len(rows)), *figures, *frames))


def _process_columns(report: Report, length: int) -> tuple[list[object], list[object]]:
    capture = report.capture
    return [printable(capture.facts.get("host", ""))] * length, [capture.process.pid] * length


def _frame_columns(frames: Sequence[Frame]) -> tuple[list[object], list[object], list[object]]:
    return (
        [printable(frame.function) for frame in frames],
        [printable(frame.file) for frame in frames],
        [frame.line for frame in frames],
    )
