"""Which call paths of a process leak: their live bytes rise from one marker or phase to the next, and what they
allocated stays.

The test, for the call paths (threads aside) and kinds that have LEAST_BYTES at the last snapshot:

1. Live bytes rise from snapshot to snapshot: one-sided Mann–Kendall test, p < LEVEL for all call paths of all processes
   together (Bonferroni's correction for the processes, Holm's for the paths of each).
2. The lower bound of the Theil–Sen slope is above zero.
3. The survivors are of all ages: each quarter of the time between the snapshots allocated LEAST_SHARE or more of what
   survived from it. A cache with a bound, a queue or a variable that is bound again holds young blocks alone, however
   its size changes.

The first third of the snapshots is not used: caches fill and modules are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hiwater.analysis import sums, trends
from hiwater.analysis.growth import (
    LEAST_BYTES,
    Growth,
    Moments,
    by_interval,
    find_moments,
    group_of_accounts,
    live_at,
)
from hiwater.analysis.headers import Grown, leak_of_headers
from hiwater.analysis.holders import AccountsSearch, accounts_search
from hiwater.analysis.suppressions import KNOWN, Suppression
from hiwater.analysis.type_growth import TypeLeak, find_type_leaks
from hiwater.analysis.user_lines import Group, rows_of_paths
from hiwater.capture import Capture
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Frame, Ints, sum_at
from hiwater.capture.tables import Tables

_FEWEST = 8  # snapshots: with fewer, the exact test cannot reach the level for more than a few call paths


@dataclass(frozen=True, slots=True)
class Leak:
    """A line whose memory grows, with all of its call paths that do. Bytes are those that the program requested.

    `pids` are the processes in which it does, the one that grows most first; figures are sums over them, but for those
    per moment, which are means. `bytes_per_moment` is the Theil–Sen slope: bytes for each call, marker or phase.
    `lower_bytes_per_moment` is its lower bound. `live_bytes` and `live_blocks` are those at the last snapshot, and
    `grown_bytes` the part of them allocated since the first one that was tested. `oldest` is the number of the moment
    after which the oldest of that part was allocated. `frames` are those of the path with most growth, root first.
    `kinds` has the kinds of memory. `suppression` is why this is no leak, or None. `held_by` is what holds most of it,
    in words, and `types` are the types of its objects, most bytes first, if the capture has a search for holders.
    `headers` are lines at which small blocks of one size grow in step with it: headers of its objects, or memory that
    free lists handed on (analysis/headers.py). With a search for holders, the figures are sums with theirs.
    """

    pids: tuple[int, ...]
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
    types: tuple[str, ...] = ()
    headers: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLeaks:
    """The result for one process: how many moments there were, how many snapshots of them were tested, and how many
    call paths.

    `last_tested` is the number of the last moment that was tested: from then on there were too many call paths to tell
    when blocks were allocated.

    `rows` would be leaks, but for those with a suppression. `detectable_bytes` is the smallest growth for each moment
    that would have been found. `by_type` are types whose objects leak on call paths that do not show it one by one.
    `can_tell` is False if too few moments were recorded for any leak to be significant.
    """

    pid: int
    moments: int
    last_tested: int
    tested_snapshots: int
    tested_paths: int
    detectable_bytes: int
    can_tell: bool
    rows: Sequence[Leak]
    by_type: Sequence[TypeLeak]


def leaks_of_process(
    capture: Capture, name: str, level: float, suppressions: Sequence[Suppression]
) -> ProcessLeaks | None:
    """Test the call paths of a capture between the markers, phases or intervals called `name`; None if it has none
    of that name."""
    tables, pid = capture.tables, capture.process.pid
    moments = find_moments(tables, name)
    if moments is None:
        return None
    count, calls = len(moments.number), int(moments.number[-1])
    growth = _PathGrowth(tables, moments, level)
    leaking, search, known = growth.leaking(), accounts_search(tables), (*suppressions, *KNOWN)
    rows = _rows(tables, pid, growth, leaking, search, known)
    others = growth.accounts_of(leaking)
    types = [] if search is None else find_type_leaks(tables, pid, moments, level, search, others, known)
    leaks, by_type = _told_once(rows, types, search)
    tested = len(growth.p_values)
    return ProcessLeaks(
        pid=pid,
        moments=moments.made,
        last_tested=calls,
        tested_snapshots=count,
        tested_paths=tested,
        detectable_bytes=-(-LEAST_BYTES // max(1, calls)),
        can_tell=count >= _FEWEST and trends.smallest_p(count) * max(1, tested) < level,
        rows=leaks,
        by_type=by_type,
    )


class _PathGrowth(Growth):
    """Of each large call path and kind."""

    def __init__(self, tables: Tables, moments: Moments, level: float) -> None:
        distinct, group = group_of_accounts(tables)
        wanted = moments.slice.tolist()
        last, blocks = next(live_at(tables, wanted[-1:]))
        live = sum_at(len(distinct), group, np.where(is_counted(tables.account_kind), last, 0))
        large = np.flatnonzero(live >= LEAST_BYTES)
        row_of = np.full(len(distinct), -1, np.int64)
        row_of[large] = np.arange(len(large))
        row = row_of[group]
        self._accounts = np.flatnonzero(row >= 0)
        self._row = row[self._accounts]
        self.live_bytes: Ints = live[large]
        self.live_blocks = self._sums(blocks)
        series = np.zeros((len(large), len(wanted)), np.int64)
        for number, (values, _) in enumerate(live_at(tables, wanted)):
            series[:, number] = self._sums(values)
        survivors = by_interval(moments, self._accounts, self._row, last[self._accounts], len(large))
        super().__init__(moments, level, series, survivors)
        biggest = self._accounts[np.argsort(last[self._accounts], kind="stable")]
        self.node: Ints = np.zeros(len(large), np.int64)
        self.node[row[biggest]] = tables.account_node[biggest]  # the last assignment, of most bytes, stays
        self.kind: Ints = distinct[large] % len(KINDS)

    def _sums(self, values: Ints) -> Ints:
        return sum_at(len(self.live_bytes), self._row, values[self._accounts])

    def accounts_of(self, rows: list[int]) -> Ints:
        return self._accounts[np.isin(self._row, rows)]


def _rows(
    tables: Tables,
    pid: int,
    growth: _PathGrowth,
    leaking: list[int],
    search: AccountsSearch | None,
    suppressions: Sequence[Suppression],
) -> list[tuple[Leak, Grown]]:
    """The leaking paths by line, of the user's own code where there is one on the path; each with what has grown."""
    if not leaking:
        return []
    found = rows_of_paths(tables, _nodes_at_fault(tables, growth, leaking), growth.live_bytes[leaking])
    by_row: dict[tuple[int, Suppression | None], list[int]] = {}
    for number, row in zip(leaking, found.row.tolist(), strict=True):
        frames = tables.paths.frames(int(growth.node[number]))
        suppression = next((one for one in suppressions if one.matches(frames)), None)
        by_row.setdefault((row, suppression), []).append(number)
    rows = []
    for (row, suppression), members in by_row.items():
        leak = _leak(tables, pid, growth, found.rows[row], members, suppression)
        accounts = growth.accounts_of(members)
        if search is not None:
            leak = replace(leak, held_by=search.holder(accounts), types=search.types(accounts))
        series = growth.series[members].sum(axis=0)
        rows.append((leak, Grown(accounts, leak.bytes_per_moment, series, leak.kinds, leak.live_blocks, leak.types)))
    return rows


def _told_once(
    rows: Sequence[tuple[Leak, Grown]], by_type: Sequence[tuple[TypeLeak, Grown]], search: AccountsSearch | None
) -> tuple[list[Leak], list[TypeLeak]]:
    """The leaks, each with its headers. One that is suppressed has none, unless a search for holders shows them."""
    candidates = [grown for leak, grown in rows if leak.suppression is None or search is not None]
    leak_of = {grown: leak_of_headers(grown, candidates, search) for _, grown in (*rows, *by_type)}
    leaks = []
    for leak, grown in rows:
        if leak_of[grown] is None:
            lines = [one for one, part in rows if leak_of[part] is grown]
            types = [one for one, part in by_type if leak_of[part] is grown]
            frames = [*(one.frame for one in lines), *(frame for one in types for frame in one.lines)]
            with_headers = leak if search is None else _with_figures(leak, [*lines, *types])
            leaks.append(replace(with_headers, headers=tuple(dict.fromkeys(frames))))
    return leaks, [leak for leak, grown in by_type if leak_of[grown] is None]


def _with_figures(leak: Leak, parts: Sequence[Leak | TypeLeak]) -> Leak:
    return replace(
        leak,
        bytes_per_moment=leak.bytes_per_moment + sum(one.bytes_per_moment for one in parts),
        lower_bytes_per_moment=leak.lower_bytes_per_moment + sum(one.lower_bytes_per_moment for one in parts),
        live_bytes=leak.live_bytes + sum(one.live_bytes for one in parts),
        live_blocks=leak.live_blocks + sum(one.live_blocks for one in parts if isinstance(one, Leak)),
        grown_bytes=leak.grown_bytes + sum(one.grown_bytes for one in parts),
    )


def _nodes_at_fault(tables: Tables, growth: _PathGrowth, leaking: list[int]) -> Ints:
    """For each leaking path, its innermost node of the user's own code on whose line most of what is allocated is
    allocated by leaking paths.

    A helper that many callers use is not at fault if only one of them keeps what it returns: that caller is. If no line
    is so, the whole path's node.
    """
    nodes = tables["nodes"]
    parent = tables.paths.parent
    total = tables["accounts"]["total_bytes"].astype(np.int64)
    on_line, of_leaks = (
        sums.sum_upwards(parent, sum_at(len(nodes), tables.account_node[chosen], total[chosen]))
        for chosen in (np.arange(len(total)), growth.accounts_of(leaking))
    )
    _, line = np.unique(tables.paths.place, return_inverse=True)
    on_line, of_leaks = (sum_at(int(line.max()) + 1, line, values) for values in (on_line, of_leaks))
    is_own = tables.is_own_code.tolist()
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
    pid: int,
    growth: _PathGrowth,
    row: tuple[Group, Frame],
    members: list[int],
    suppression: Suppression | None,
) -> Leak:
    slopes = [growth.slope(number) for number in members]
    most = members[max(range(len(members)), key=lambda place: slopes[place][0])]
    return Leak(
        (pid,),
        *row,
        sum(slope for slope, _ in slopes),
        sum(lower for _, lower in slopes),
        int(growth.live_bytes[members].sum()),
        int(growth.live_blocks[members].sum()),
        int(growth.survivors[members].sum()),
        min(growth.oldest(number) for number in members),
        min(growth.p_values[number] for number in members),
        len(members),
        tuple(sorted({KINDS[growth.kind[number]] for number in members})),
        tables.paths.frames(int(growth.node[most])),
        suppression,
    )
