"""How live bytes change from one snapshot to the next, and the test that tells leaks from what only looks like them
(see analysis/leaks.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiwater.analysis import ages, trends
from hiwater.capture.format import KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables

LEVEL = 0.001
LEAST_BYTES = 64 * 1024
LEAST_SHARE = 0.05
_PARTS = 4
_NEVER = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The snapshots of one name that are tested: their numbers and slices. `made` is the number of the last snapshot
    of that name: it is not tested if there were too many accounts by then to tell ages apart. For each account,
    `interval` is the number of the snapshot after which its blocks were allocated: -1 before the first one, and
    after the last one."""

    name: str
    made: int
    number: Ints
    slice: Ints
    interval: Ints


def snapshots_by_name(tables: Tables) -> dict[str, int]:
    """How many snapshots a capture has of the markers, phases or intervals of each name."""
    rows = ages.snapshots(tables)
    if rows is None:
        return {}
    names, counts = np.unique(rows["name"], return_counts=True)
    return {tables.string(text): count for text, count in zip(names.tolist(), counts.tolist(), strict=True)}


def find_moments(tables: Tables, name: str) -> Moments | None:
    """The snapshots to test: of the markers, phases or intervals called `name`; None if there are none."""
    rows = ages.snapshots(tables)
    born = ages.births(tables)
    if rows is None or born is None:
        return None
    known_ns = rows["at_ns"][rows["first_account"] == 0].min(initial=_NEVER)
    own = rows[np.array([tables.string(text) == name for text in rows["name"].tolist()], bool)]
    if not len(own):
        return None
    made = int(own["number"].max())
    own = own[: max(1, np.count_nonzero(own["at_ns"] <= known_ns))]
    own = own[len(own) // 3 :]
    number, at_ns, slices = (own[field].astype(np.int64) for field in ("number", "at_ns", "slice"))
    interval = np.searchsorted(at_ns, born[0], "right") - 1
    return Moments(name, made, number, slices, np.where(interval < len(at_ns) - 1, interval, -1))


class Growth:
    """The live bytes of each row, which is a call path or a type, at each snapshot: `series[row, snapshot]`.
    `survivors[row, interval]` is what was allocated in each interval between two snapshots and is live at the last
    one. `level` is that of all rows together."""

    def __init__(self, moments: Moments, level: float, series: Ints, survivors: Ints) -> None:
        self.moments, self.level, self.series, self.survivors = moments, level, series, survivors
        self.p_values = [trends.rising_p(values) for values in series.tolist()]

    def leaking(self) -> list[int]:
        """The rows that pass all conditions of the test."""
        return [
            row
            for row, is_rising in enumerate(trends.holm(self.p_values, self.level))
            if is_rising and self.slope(row)[1] > 0 and self.is_of_all_ages(row)
        ]

    def slope(self, row: int) -> tuple[float, float]:
        """Bytes for each moment, and the lower bound."""
        return trends.slope(self.moments.number.tolist(), self.series[row].tolist(), self.level)

    def is_of_all_ages(self, row: int) -> bool:
        survivors = self.survivors[row]
        parts = [int(part.sum()) for part in np.array_split(survivors, _PARTS)]
        return sum(parts) > 0 and min(parts) >= LEAST_SHARE * sum(parts)

    def oldest(self, row: int) -> int:
        """The number of the moment after which the oldest of what has grown was allocated."""
        return int(self.moments.number[np.argmax(self.survivors[row] > 0)])


def by_interval(moments: Moments, accounts: Ints, row: Ints, size: Ints, rows: int) -> Ints:
    """The bytes of each row by the interval that allocated them: `size[i]` bytes of account `accounts[i]` belong to
    row `row[i]`."""
    interval = moments.interval[accounts]
    inside = np.flatnonzero(interval >= 0)
    found = np.zeros((rows, max(1, len(moments.number) - 1)), np.int64)
    np.add.at(found, (row[inside], interval[inside]), size[inside])
    return found


def live_at(tables: Tables, wanted: Sequence[int]) -> Iterator[tuple[Ints, Ints]]:
    """For each of these slices, ascending: the bytes and blocks of every account at its peak. The arrays are changed
    by the next step."""
    length = len(tables.account_node)
    values, blocks = np.zeros(length, np.int64), np.zeros(length, np.int64)
    entries, place = tables["slice_entries"], 0
    pieces: npt.NDArray[np.void] = tables["slices"][["first_entry", "entry_count"]]
    for slice_number in wanted:
        for first, count in pieces[place : slice_number + 1].tolist():
            listed = entries[first : first + count]
            values[listed["account"]] = listed["bytes"]
            blocks[listed["account"]] = listed["blocks"]
        place = slice_number + 1
        yield values, blocks


def group_of_accounts(tables: Tables) -> tuple[Ints, Ints]:
    """The call paths, threads aside, and kinds of memory: a number for each pair of them, which ends with the kind;
    and the index of each account's pair."""
    key = _paths_without_threads(tables)[tables.account_node] * len(KINDS) + tables.account_kind
    distinct, group = np.unique(key, return_inverse=True)
    return distinct, group


def _paths_without_threads(tables: Tables) -> Ints:
    """For each node the number of the first one with the same frames, whatever thread they are in: threads come and
    go, and have names of their own."""
    nodes = tables["nodes"]
    is_thread = tables.paths.is_thread.tolist()
    same: list[int] = []
    known: dict[tuple[int, int, int], int] = {}
    columns = (nodes[field].tolist() for field in ("parent", "code", "line"))
    for number, (parent, code, line) in enumerate(zip(*columns, strict=True)):
        if number == 0 or is_thread[number]:
            same.append(0)
        else:
            same.append(known.setdefault((same[parent], code, line), number))
    return np.array(same, np.int64)
