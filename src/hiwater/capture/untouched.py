"""Memory that the program requested and never touched: none of it is in RAM. Residency snapshots tell of large
blocks alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hiwater.capture import program
from hiwater.capture.format import KINDS
from hiwater.capture.paths import Ints, sum_at
from hiwater.capture.snapshot import Holdings, Snapshot
from hiwater.capture.tables import Tables

SETTLED_NS = 100_000_000
"""Memory that stays untouched between two snapshots this far apart counts as never touched, unless a later one says
otherwise."""
_LITTLE_GROWTH = 1 << 20


def untouched_bytes(snapshot: Snapshot) -> int:
    """What of the memory that was allocated at this moment was never touched, as far as it is known."""
    never = never_touched(snapshot.tables)
    return int(untouched_of(never, snapshot.holdings()).sum()) if never else 0


def untouched_of(never: Mapping[int, int], holdings: Holdings) -> Ints:
    """For each entry of `holdings`, how many bytes of it were never touched. `never` has them by node, as
    `never_touched()` gives them."""
    untouched = np.zeros(len(holdings.node), np.int64)
    if not never:
        return untouched
    left = dict(never)
    in_ram = holdings.kind != KINDS.index("device")
    nodes = np.sort(np.fromiter(left, np.int64, len(left)))  # np.isin() would import numpy.ma: 20 ms of CPU time
    place = np.minimum(np.searchsorted(nodes, holdings.node), len(nodes) - 1)
    for number in np.flatnonzero((nodes[place] == holdings.node) & in_ram).tolist():
        node = int(holdings.node[number])
        part = max(0, min(left[node], int(holdings.bytes[number])))
        untouched[number] = part
        left[node] -= part
    return untouched


def never_touched(tables: Tables) -> dict[int, int]:
    """For each node with large blocks, how many bytes of them were untouched when most of them was touched, as far
    as residency snapshots tell. That must have been so in two snapshots that are SETTLED_NS apart, or in the last
    one: in another alone, the program may have been writing to them. The last one tells of the end in a recording
    that ended in an orderly way, which takes one then. In others, the process must have lived on for SETTLED_NS
    without more resident memory."""
    if tables.untouched is not None:
        return tables.untouched
    blocks = tables.get("large_blocks")
    if blocks is None or len(blocks) == 0:
        return {}
    at = np.stack([blocks["node"].astype(np.int64), blocks["at_ns"].astype(np.int64)])
    seen, back = np.unique(at, axis=1, return_inverse=True)
    requested, touched = (
        sum_at(seen.shape[1], back.reshape(-1), blocks[name].astype(np.int64)) for name in ("bytes", "touched_bytes")
    )
    last_ns = int(at[1].max())
    most: dict[int, _Seen] = {}
    for node, at_ns, size, resident in zip(*seen.tolist(), requested.tolist(), touched.tolist(), strict=True):
        known = most.get(node)
        if known is None or (resident, size) > (known.touched, known.requested):
            most[node] = _Seen(resident, size, at_ns, at_ns)
        elif (resident, size) == (known.touched, known.requested):
            most[node] = replace(known, last_ns=at_ns)
    most.pop(0, None)  # allocated by no recorded call path
    is_of_the_end = program.ended(tables) == "exit" or _was_at_rest_after(tables, last_ns)
    return {
        node: found.requested - found.touched
        for node, found in most.items()
        if found.last_ns - found.first_ns >= SETTLED_NS or (is_of_the_end and found.last_ns == last_ns)
    }


def _was_at_rest_after(tables: Tables, last_ns: int) -> bool:
    """Whether the process lived on after its last residency snapshot and had no more resident memory then."""
    parts = tables.get("residency")
    if parts is None or program.duration_ns(tables) - last_ns < SETTLED_NS:
        return False
    then = int(parts["resident_bytes"][parts["at_ns"] == last_ns].astype(np.int64).sum())
    return int(tables.header["resident_last_bytes"]) - then <= _LITTLE_GROWTH


@dataclass(frozen=True, slots=True)
class _Seen:
    """The large blocks of a node in the snapshots in which most of them was touched, from the first of these to the
    last."""

    touched: int
    requested: int
    first_ns: int
    last_ns: int
