"""Happenings that a recording noted, with the line at which each of them came."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hiwater.capture.paths import Frame, Paths
from hiwater.capture.tables import Tables

_NAMES = {1: "fork", 2: "out of memory", 3: "exec", 4: "gc"}


@dataclass(frozen=True, slots=True)
class Marker:
    """Something that happened: `kind` is "fork" (value: the child's pid), "out of memory" (bytes asked for) or "exec"."""

    at_ns: int
    kind: str
    value: int
    thread: str
    node: int
    _paths: Paths = field(repr=False, compare=False)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The call path at which it came, root first. Made at each access: there may be many markers on long paths."""
        return self._paths.frames(self.node)


def read_markers(tables: Tables) -> tuple[Marker, ...]:
    """All markers of a capture, in time."""
    rows = tables["markers"]
    names, thread = tables.paths.threads(rows["node"].astype(np.int64))
    columns = (rows[name].tolist() for name in ("at_ns", "kind", "value", "node"))
    return tuple(
        Marker(at_ns, _NAMES.get(kind, "other"), value, names[number], node, tables.paths)
        for at_ns, kind, value, node, number in zip(*columns, thread.tolist(), strict=True)
    )
