"""When what is still live was allocated.

At each marker, end of a phase or interval with a snapshot, the recorder opens new accounts for what is allocated from
then on. So an account tells between which two snapshots its blocks were allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiwater.analysis.holders import accounts_search
from hiwater.analysis.user_lines import Group, rows_of_paths
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Frame, Ints, sum_at
from hiwater.capture.references import Records
from hiwater.capture.snapshot import Snapshot
from hiwater.capture.tables import Tables

PARTS = 4
"""The recording's time is shown in so many equal parts."""


@dataclass(frozen=True, slots=True)
class Survivors:
    """A line of which memory is live: `bytes` in `blocks`. `by_age` has the bytes that each quarter of the
    recording's time allocated, the first one first; of the rest it is not known. It is empty if the capture has no
    snapshots. `types` are the types of the objects, most bytes first, and `held_by` what holds most, if the capture
    has a search for holders and the row is one of those that were asked for."""

    group: Group
    frame: Frame
    bytes: int
    blocks: int
    by_age: tuple[int, ...]
    types: tuple[str, ...]
    held_by: str


def snapshots(tables: Tables) -> Records | None:
    """The snapshots of all markers, phases and intervals, as far as the capture has their slices; None where it has
    none."""
    rows = tables.get("live_snapshots")
    if rows is None:
        return None
    rows = rows[rows["slice"] < len(tables["slices"])]
    return rows if len(rows) else None


def births(tables: Tables) -> tuple[Ints, Ints] | None:
    """For each account, the interval between two snapshots in which its blocks were allocated: its start and its
    end; None without snapshots."""
    rows = snapshots(tables)
    if rows is None:
        return None
    renewed = rows[rows["first_account"] > 0]
    bounds = np.concatenate(
        ([0], renewed["at_ns"].astype(np.int64), [tables.header["ended_ns"] or int(rows["at_ns"].max())])
    )
    number = np.searchsorted(renewed["first_account"], np.arange(len(tables.account_node)), "right")
    return bounds[number], np.maximum(bounds[number], bounds[number + 1])


def quarters(tables: Tables, until_ns: int) -> Ints | None:
    """For each account, the part of the time before `until_ns` in which its blocks were allocated: 0 to PARTS - 1; None
    without snapshots.

    It is the part with the middle of the interval between the two snapshots. Where that interval is longer than a part,
    as the first one may be and the last one is once there are too many accounts, it is not known: -1.
    """
    born = births(tables)
    if born is None:
        return None
    first, last = born[0], np.minimum(born[1], until_ns)
    part = np.minimum((first + last) // 2 * PARTS // max(1, until_ns), PARTS - 1)
    return np.where((last - first) * PARTS <= until_ns, part, -1)


def survivors(snapshot: Snapshot, kind: str = "all", *, described: int) -> list[Survivors]:
    """What is live at this moment, by line of code, most bytes first. The first `described` rows have types and
    holders."""
    tables = snapshot.tables
    wanted = is_counted(tables.account_kind) if kind == "all" else tables.account_kind == KINDS.index(kind)
    accounts = np.flatnonzero(wanted & (snapshot.bytes > 0))
    size, blocks = snapshot.bytes[accounts], snapshot.blocks[accounts]
    found = rows_of_paths(tables, tables.account_node[accounts], size)
    total, count = (sum_at(len(found.rows), found.row, values) for values in (size, blocks))
    quarter = quarters(tables, snapshot.at_ns)
    if quarter is not None:
        known = quarter[accounts] >= 0
        place_of = (found.row * PARTS + quarter[accounts])[known]
        by_age = sum_at(len(found.rows) * PARTS, place_of, size[known])
    search = accounts_search(tables)
    rows = []
    for place, row in enumerate(np.argsort(-total, kind="stable").tolist()):
        held_by: str = ""
        types: tuple[str, ...] = ()
        if search is not None and place < described:
            members = accounts[found.row == row]
            held_by, types = search.holder(members), search.types(members)
        ages = tuple(by_age[row * PARTS : (row + 1) * PARTS].tolist()) if quarter is not None else ()
        group, frame = found.rows[row]
        rows.append(Survivors(group, frame, int(total[row]), int(count[row]), ages, types, held_by))
    return rows
