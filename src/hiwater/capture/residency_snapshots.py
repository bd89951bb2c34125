"""The residency snapshots that a recording took: parts that add up to what was in RAM, and the largest blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hiwater.capture.paths import Frame, Paths
from hiwater.capture.reader import Records
from hiwater.capture.tables import Tables

OWN = "hiwater's own"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of resident memory, in bytes; `untouched_bytes` is address space of it that was never written: allocated, not resident."""

    name: str
    resident_bytes: int
    untouched_bytes: int


@dataclass(frozen=True, slots=True)
class LargeBlock:
    """One of the largest blocks, anonymous mappings or mappings of shared memory of a residency snapshot."""

    bytes: int
    touched_bytes: int
    from_malloc: bool
    thread: str
    node: int
    _paths: Paths = field(repr=False, compare=False)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The call path that allocated it, root first; empty where that is not known. Made at each access."""
        return self._paths.frames(self.node)


@dataclass(frozen=True, slots=True)
class ResidencySnapshot:
    """Where resident memory was at one moment, nanoseconds since the recording began: the parts add up to `resident_bytes`."""

    at_ns: int
    resident_bytes: int
    parts: tuple[Part, ...]
    large: tuple[LargeBlock, ...]


def read_residency_snapshots(tables: Tables) -> tuple[ResidencySnapshot, ...]:
    """All residency snapshots in time, the last at the end unless the process was killed; none in captures made without them."""
    rows = tables.get("residency")
    if rows is None or len(rows) == 0:
        return ()
    starts = np.flatnonzero(np.diff(rows["at_ns"], prepend=rows["at_ns"][0] + 1) != 0)
    ends = [*starts[1:].tolist(), len(rows)]
    found = [_snapshot(tables, rows[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    # The unexplained is written last: without it, the process ended while the snapshot was taken.
    return tuple(snapshot for snapshot in found if snapshot.parts[-1].name == UNEXPLAINED)


def highest(snapshots: Iterable[ResidencySnapshot]) -> ResidencySnapshot | None:
    """The one with the most resident memory."""
    return max(snapshots, key=lambda snapshot: snapshot.resident_bytes, default=None)


def _snapshot(tables: Tables, rows: Records) -> ResidencySnapshot:
    parts = tuple(
        Part(tables.string(int(row["part"])), int(row["resident_bytes"]), int(row["untouched_bytes"])) for row in rows
    )
    at_ns = int(rows["at_ns"][0])
    return ResidencySnapshot(at_ns, sum(part.resident_bytes for part in parts), parts, _large_blocks(tables, at_ns))


def _large_blocks(tables: Tables, at_ns: int) -> tuple[LargeBlock, ...]:
    rows = tables.get("large_blocks")
    if rows is None:
        return ()
    return tuple(
        LargeBlock(
            int(row["bytes"]),
            int(row["touched_bytes"]),
            bool(row["from_malloc"]),
            tables.paths.thread(int(row["node"])),
            int(row["node"]),
            tables.paths,
        )
        for row in rows[rows["at_ns"] == at_ns]
    )
