"""The residency snapshots that a recording took: parts that add up to what was in RAM, and the largest blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hiwater.capture.model import Capture
    from hiwater.capture.paths import Paths
    from hiwater.capture.snapshot import Frame

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
    """One of the largest blocks, anonymous mappings or mappings of shared memory of a look."""

    bytes: int
    touched_bytes: int
    from_malloc: bool
    thread: str
    node: int
    _paths: Paths = field(repr=False, compare=False)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The call path that allocated it, root first; empty where that is not known. Made at each look."""
        return self._paths.frames(self.node)


@dataclass(frozen=True, slots=True)
class ResidencySnapshot:
    """Where resident memory was at one moment, nanoseconds since the recording began: the parts add up to `resident_bytes`."""

    at_ns: int
    resident_bytes: int
    parts: tuple[Part, ...]
    large: tuple[LargeBlock, ...]


def read(capture: Capture) -> tuple[ResidencySnapshot, ...]:
    """All residency snapshots in time, the last at the end unless the process was killed; none in captures made without them."""
    rows = capture.tables.get("residency")
    if rows is None or len(rows) == 0:
        return ()
    starts = np.flatnonzero(np.diff(rows["at_ns"], prepend=rows["at_ns"][0] + 1) != 0)
    ends = [*starts[1:].tolist(), len(rows)]
    found = [_snapshot(capture, rows[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    # The unexplained is written last: a look without it was cut short by the end of its process.
    return tuple(look for look in found if look.parts[-1].name == UNEXPLAINED)


def _snapshot(capture: Capture, rows: np.ndarray) -> ResidencySnapshot:
    parts = tuple(
        Part(capture.string(int(row["part"])), int(row["resident_bytes"]), int(row["untouched_bytes"])) for row in rows
    )
    at_ns = int(rows["at_ns"][0])
    return ResidencySnapshot(at_ns, sum(part.resident_bytes for part in parts), parts, _large_blocks(capture, at_ns))


def _large_blocks(capture: Capture, at_ns: int) -> tuple[LargeBlock, ...]:
    rows = capture.tables.get("large_blocks")
    if rows is None:
        return ()
    return tuple(
        LargeBlock(
            int(row["bytes"]),
            int(row["touched_bytes"]),
            bool(row["from_malloc"]),
            capture.paths.thread(int(row["node"])),
            int(row["node"]),
            capture.paths,
        )
        for row in rows[rows["at_ns"] == at_ns]
    )
