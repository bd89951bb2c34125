"""The residency snapshots that a recording took: parts that add up to what was in RAM, and the largest blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hiwater._os.sizes import format_size
from hiwater.capture.document_types import Signed
from hiwater.capture.paths import AtCallPath, describe_innermost
from hiwater.capture.references import Records
from hiwater.capture.tables import Tables

OVERHEAD = "hiwater's overhead"
UNEXPLAINED = "unexplained"
_MOST_PARTS = _MOST_BLOCKS = 64  # of one snapshot: the recorder writes about ten parts, and so many blocks
_NO_BLOCKS = np.dtype([("at_ns", "<u8")])


@dataclass(frozen=True, slots=True)
class Part:
    """One part of resident memory, in bytes; `untouched_bytes` is address space of it that was never written:
    allocated, not resident."""

    name: str
    resident_bytes: Signed
    """Of `unexplained` it may be below zero: what changed between two readings."""
    untouched_bytes: int


@dataclass(frozen=True, slots=True)
class LargeBlock(AtCallPath):
    """One of the largest blocks, anonymous mappings or mappings of shared memory of a residency snapshot."""

    bytes: int
    touched_bytes: int
    from_malloc: bool

    def __repr__(self) -> str:
        held = f"{format_size(self.bytes)}, {format_size(self.touched_bytes)} resident"
        return f"<LargeBlock {held}{describe_innermost(self.frames)}>"


@dataclass(frozen=True, slots=True)
class ResidencySnapshot:
    """Where resident memory was at one moment, nanoseconds since the recording began: the parts add up to
    `resident_bytes`."""

    at_ns: int
    resident_bytes: int
    parts: tuple[Part, ...]
    large: tuple[LargeBlock, ...]

    def __repr__(self) -> str:
        parts = f"{len(self.parts)} parts, {len(self.large)} large blocks"
        return f"<ResidencySnapshot at {self.at_ns / 1e9:.3f} s: {format_size(self.resident_bytes)} in {parts}>"


def read_residency_snapshots(tables: Tables) -> tuple[ResidencySnapshot, ...]:
    """All residency snapshots in time, the last at the end unless the process was killed; none in captures made
    without them. One is left out that has not the last part, the unexplained, because the process ended while it was
    taken, or that has more parts than the recorder writes."""
    rows = tables.get("residency")
    if rows is None or len(rows) == 0:
        return ()
    starts = np.flatnonzero(np.diff(rows["at_ns"], prepend=rows["at_ns"][0] + 1) != 0)
    moments, ends = rows["at_ns"][starts], [*starts[1:].tolist(), len(rows)]
    blocks = tables.get("large_blocks")
    blocks = np.zeros(0, _NO_BLOCKS) if blocks is None else blocks[np.argsort(blocks["at_ns"], kind="stable")]
    first, last = (np.searchsorted(blocks["at_ns"], moments, side=side).tolist() for side in ("left", "right"))
    columns = [rows[name].tolist() for name in ("part", "resident_bytes", "untouched_bytes")]
    found = []
    for number, (at_ns, start, end) in enumerate(zip(moments.tolist(), starts.tolist(), ends, strict=True)):
        if end - start > _MOST_PARTS or tables.string(columns[0][end - 1]) != UNEXPLAINED:
            continue
        parts = tuple(
            Part(tables.string(part), resident, untouched)
            for part, resident, untouched in zip(*(column[start:end] for column in columns), strict=True)
        )
        its_blocks = blocks[first[number] : min(last[number], first[number] + _MOST_BLOCKS)]
        large = _large_blocks(tables, its_blocks) if len(its_blocks) else ()
        found.append(ResidencySnapshot(at_ns, sum(part.resident_bytes for part in parts), parts, large))
    return tuple(found)


def highest(snapshots: Iterable[ResidencySnapshot]) -> ResidencySnapshot | None:
    """The one with the most resident memory."""
    return max(snapshots, key=lambda snapshot: snapshot.resident_bytes, default=None)


def _large_blocks(tables: Tables, rows: Records) -> tuple[LargeBlock, ...]:
    paths = tables.paths
    columns = (rows[name].tolist() for name in ("node", "bytes", "touched_bytes", "from_malloc"))
    return tuple(
        LargeBlock(paths.thread(node), node, paths, size, touched, bool(from_malloc))
        for node, size, touched, from_malloc in zip(*columns, strict=True)
    )
