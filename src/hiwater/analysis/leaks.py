"""Which call paths leak: their live bytes rise from one marker or phase to the next, and what they allocated stays.

The test, for the call paths (threads aside) and kinds that have LEAST_BYTES at the last snapshot:

1. Live bytes rise from snapshot to snapshot: one-sided Mann–Kendall test, p < LEVEL for all call paths together (Holm's correction).
2. The lower bound of the Theil–Sen slope is above zero.
3. The survivors are of all ages: each quarter of the time between the snapshots allocated LEAST_SHARE or more of what survived from it. A cache
   with a bound, a queue or a variable that is bound again holds young blocks alone, however its size changes.

The first third of the snapshots is not used: caches fill and modules are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hiwater.analysis import sums, trends
from hiwater.analysis.holders import holder_of_accounts
from hiwater.analysis.naming import is_library
from hiwater.analysis.suppressions import KNOWN, Suppression
from hiwater.analysis.user_lines import Group, rows_of_paths
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Frame, Ints
from hiwater.capture.tables import Tables
from hiwater.errors import BadRequest

LEVEL = 0.001
LEAST_BYTES = 64 * 1024
LEAST_SHARE = 0.05
_PARTS = 4
_FEWEST = 8  # snapshots: with fewer, the exact test cannot reach the level for more than a few call paths
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Leak:
    """A line whose memory grows, with all of its call paths that do. Bytes are those that the program requested.

    `bytes_per_moment` is the Theil–Sen slope: bytes for each call, marker or phase. `lower_bytes_per_moment` is its lower bound.
    `live_bytes` and `live_blocks` are those at the last snapshot, and `grown_bytes` the part of them allocated since the first one that was
    tested. `oldest` is the number of the moment after which the oldest of that part was allocated. `frames` are those of the path with most
    growth, root first. `kinds` has the kinds of memory. `suppression` is why this is no leak, or None. `held_by` is what holds most of it, in words, if
    the capture has a search for holders; "" otherwise.
    """

    group: Group
    frame: Frame
    bytes_per_moment: float
    lower_bytes_per_moment: float
    live_bytes: int
    live_blocks: int
    grown_bytes: int
    oldest: int
    p: float
    paths: int
    kinds: tuple[str, ...]
    frames: tuple[Frame, ...]
    suppression: Suppression | None
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class Leaks:
    """The result for the moments called `name`: how many there were, how many snapshots of them were tested, and how many call paths.

    `rows` are leaks, largest growth first; `suppressed` would be leaks, but for a suppression. `detectable_bytes` is the smallest growth for each
    moment that would have been found. `can_tell` is False if too few moments were recorded for any leak to be significant.
    """

    name: str
    moments: int
    tested_snapshots: int
    tested_paths: int
    detectable_bytes: int
    can_tell: bool
    rows: Sequence[Leak]
    suppressed: Sequence[Leak]


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    """The snapshots of one name: their numbers, times and slices. `births_ns` and `first_account` are of the snapshots of all names: accounts
    from `first_account[i]` on have blocks allocated after `births_ns[i]`."""

    name: str
    number: Ints
    at_ns: Ints
    slice: Ints
    births_ns: Ints
    first_account: Ints


def find_leaks(tables: Tables, *, name: str | None = None, suppressions: Sequence[Suppression] = ()) -> Leaks:
    """Test the call paths of a capture between the markers or phases called `name`; without a name, those of which there are most.

    Raises BadRequest if the capture has none, or none of that name.
    """
    moments = _moments(tables, name)
    count = len(moments.number)
    calls = int(moments.number[-1])
    growth = _Growth(tables, moments)
    p_values = [trends.rising_p(values) for values in growth.series.tolist()]
    leaking = [
        number
        for number, is_rising in enumerate(trends.holm(p_values, LEVEL))
        if is_rising and growth.slope(number)[1] > 0 and growth.is_of_all_ages(number)
    ]
    rows = _rows(tables, growth, leaking, p_values, (*suppressions, *KNOWN))
    return Leaks(
        name=moments.name,
        moments=calls,
        tested_snapshots=count,
        tested_paths=len(p_values),
        detectable_bytes=-(-LEAST_BYTES // calls),
        can_tell=count >= _FEWEST and trends.smallest_p(count) * max(1, len(p_values)) < LEVEL,
        rows=[row for row in rows if row.suppression is None][:_MOST_ROWS],
        suppressed=[row for row in rows if row.suppression is not None][:_MOST_ROWS],
    )


def _moments(tables: Tables, name: str | None) -> _Moments:
    rows = tables.get("live_snapshots")
    remedy = "call `hiwater.mark('name')` or use `hiwater.phase('name')` where one unit of work ends, or run `hiwater leaks --repeat 30 FILE.py:FUNCTION`"
    if rows is not None:
        rows = rows[rows["slice"] < len(tables["slices"])]
    if rows is None or len(rows) == 0:
        raise BadRequest("the capture has no markers or phases between which memory could grow", remedy)
    names, counts = np.unique(rows["name"], return_counts=True)
    by_name = {tables.string(text): text for text in names.tolist()}
    chosen = names[np.argmax(counts)] if name is None else by_name.get(name)
    if chosen is None:
        raise BadRequest(f"the capture has no marker or phase {name!r}", f"choose one of {', '.join(sorted(by_name))}")
    renewed = rows[rows["first_account"] > 0]
    own = rows[rows["name"] == chosen]
    own = own[len(own) // 3 :]
    return _Moments(
        tables.string(int(chosen)),
        *(own[field].astype(np.int64) for field in ("number", "at_ns", "slice")),
        *(renewed[field].astype(np.int64) for field in ("at_ns", "first_account")),
    )


class _Growth:
    """The live bytes of each large call path and kind at each snapshot, `series[path, snapshot]`; the survivors of each interval between two
    snapshots, `survivors[path, interval]`, at the last one."""

    def __init__(self, tables: Tables, moments: _Moments) -> None:
        self._moments = moments
        path = _paths_without_threads(tables)[tables.account_node]
        key = path * len(KINDS) + tables.account_kind
        distinct, group = np.unique(key, return_inverse=True)
        wanted = moments.slice.tolist()
        last, blocks = next(_live_at(tables, wanted[-1:]))
        live = sums.sum_at(len(distinct), group, np.where(is_counted(tables.account_kind), last, 0))
        large = np.flatnonzero(live >= LEAST_BYTES)
        row_of = np.full(len(distinct), -1, np.int64)
        row_of[large] = np.arange(len(large))
        row = row_of[group]
        self._accounts = np.flatnonzero(row >= 0)
        self._row = row[self._accounts]
        self.live_bytes: Ints = live[large]
        self.live_blocks = self._sums(blocks)
        self.series: Ints = np.zeros((len(large), len(wanted)), np.int64)
        for number, (values, _) in enumerate(_live_at(tables, wanted)):
            self.series[:, number] = self._sums(values)
        self.survivors = self._survivors(last)
        biggest = self._accounts[np.argsort(last[self._accounts], kind="stable")]
        self.node: Ints = np.zeros(len(large), np.int64)
        self.node[row[biggest]] = tables.account_node[biggest]  # the last assignment, of most bytes, stays
        self.kind: Ints = distinct[large] % len(KINDS)

    def _sums(self, values: Ints) -> Ints:
        return sums.sum_at(len(self.live_bytes), self._row, values[self._accounts])

    def _survivors(self, last: Ints) -> Ints:
        at_ns, births_ns = self._moments.at_ns, np.append(0, self._moments.births_ns)
        born_ns = births_ns[np.searchsorted(self._moments.first_account, self._accounts, "right")]
        interval = np.searchsorted(at_ns, born_ns, "right") - 1
        inside = np.flatnonzero((interval >= 0) & (interval < len(at_ns) - 1))
        found = np.zeros((len(self.live_bytes), max(1, len(at_ns) - 1)), np.int64)
        np.add.at(found, (self._row[inside], interval[inside]), last[self._accounts[inside]])
        return found

    def accounts_of(self, rows: list[int]) -> Ints:
        return self._accounts[np.isin(self._row, rows)]

    def slope(self, row: int) -> tuple[float, float]:
        """Bytes for each moment, and the lower bound."""
        return trends.slope(self._moments.number.tolist(), self.series[row].tolist(), LEVEL)

    def is_of_all_ages(self, row: int) -> bool:
        survivors = self.survivors[row]
        parts = [int(part.sum()) for part in np.array_split(survivors, _PARTS)]
        return sum(parts) > 0 and min(parts) >= LEAST_SHARE * sum(parts)

    def oldest(self, row: int) -> int:
        return int(self._moments.number[np.argmax(self.survivors[row] > 0)])


def _rows(
    tables: Tables, growth: _Growth, leaking: list[int], p_values: list[float], suppressions: Sequence[Suppression]
) -> list[Leak]:
    """The leaking paths by line: of the user's own code where there is one on the path."""
    if not leaking:
        return []
    found = rows_of_paths(tables, _nodes_at_fault(tables, growth, leaking))
    by_row: dict[tuple[int, Suppression | None], list[int]] = {}
    for number, row in zip(leaking, found.row.tolist(), strict=True):
        frames = tables.paths.frames(int(growth.node[number]))
        suppression = next((one for one in suppressions if one.matches(frames)), None)
        by_row.setdefault((row, suppression), []).append(number)
    holder_of = holder_of_accounts(tables)
    rows = [
        replace(
            _leak(tables, growth, found.rows[row], members, p_values, suppression),
            held_by=holder_of(growth.accounts_of(members)),
        )
        for (row, suppression), members in by_row.items()
    ]
    return sorted(rows, key=lambda leak: -leak.bytes_per_moment)


def _nodes_at_fault(tables: Tables, growth: _Growth, leaking: list[int]) -> Ints:
    """For each leaking path, its innermost node of the user's own code on whose line most of what is allocated is allocated by leaking paths.

    A helper that many callers use is not at fault if only one of them keeps what it returns: that caller is. If no line is so, the
    whole path's node.
    """
    nodes, codes = tables["nodes"], tables["codes"]
    parent = tables.paths.parent
    total = tables["accounts"]["total_bytes"].astype(np.int64)
    on_line, of_leaks = (
        sums.sum_upwards(parent, sums.sum_at(len(nodes), tables.account_node[chosen], total[chosen]))
        for chosen in (np.arange(len(total)), growth.accounts_of(leaking))
    )
    _, line = np.unique(nodes["code"].astype(np.int64) << 32 | nodes["line"], return_inverse=True)
    on_line, of_leaks = (sums.sum_at(int(line.max()) + 1, line, values) for values in (on_line, of_leaks))
    is_own = [not is_library(tables.string(int(file))) for file in codes["file"]]
    code = nodes["code"].tolist()

    def at_fault(node: int) -> int:
        above = node
        while above:
            if is_own[code[above]] and 2 * of_leaks[line[above]] > on_line[line[above]]:
                return above
            above = int(parent[above])
        return node

    return np.array([at_fault(int(growth.node[number])) for number in leaking], np.int64)


def _leak(
    tables: Tables,
    growth: _Growth,
    row: tuple[Group, Frame],
    members: list[int],
    p_values: list[float],
    suppression: Suppression | None,
) -> Leak:
    slopes = [growth.slope(number) for number in members]
    most = members[max(range(len(members)), key=lambda place: slopes[place][0])]
    return Leak(
        *row,
        sum(slope for slope, _ in slopes),
        sum(lower for _, lower in slopes),
        int(growth.live_bytes[members].sum()),
        int(growth.live_blocks[members].sum()),
        int(growth.survivors[members].sum()),
        min(growth.oldest(number) for number in members),
        min(p_values[number] for number in members),
        len(members),
        tuple(sorted({KINDS[growth.kind[number]] for number in members})),
        tables.paths.frames(int(growth.node[most])),
        suppression,
    )


def _live_at(tables: Tables, wanted: Sequence[int]) -> Iterator[tuple[Ints, Ints]]:
    """For each of these slices, ascending: the bytes and blocks of every account at its peak. The arrays are changed by the next step."""
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


def _paths_without_threads(tables: Tables) -> Ints:
    """For each node the number of the first one with the same frames, whatever thread they are in: threads come and go, and have names of
    their own."""
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
