"""Types whose objects leak on many call paths, none of which shows it by itself.

The search for holders says of which type the blocks of an account are. So the live bytes of a type at each snapshot are
those of its call paths, each in the proportion that it has at the search. The test is that of call paths
(analysis/leaks.py); what leaks on paths of its own is not counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hiwater.analysis.call_tree import follow
from hiwater.analysis.growth import LEAST_BYTES, Growth, Moments, by_interval, group_of_accounts, live_at
from hiwater.analysis.headers import Grown
from hiwater.analysis.holders import AccountsSearch
from hiwater.analysis.suppressions import Suppression
from hiwater.analysis.user_lines import Bools, rows_of_paths
from hiwater.capture.paths import Frame, Ints, sum_at
from hiwater.capture.tables import Tables

_MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class TypeLeak:
    """Objects of one type of which there are more at each moment. Figures as in `Leak`; `lines` are those that
    allocate most, of `line_count`."""

    pids: tuple[int, ...]
    type_name: str
    bytes_per_moment: float
    lower_bytes_per_moment: float
    live_bytes: int
    grown_bytes: int
    oldest: int
    p: float
    lines: tuple[Frame, ...]
    line_count: int
    held_by: str


def find_type_leaks(
    tables: Tables,
    pid: int,
    moments: Moments,
    level: float,
    search: AccountsSearch,
    but: Ints,
    suppressions: Sequence[Suppression],
) -> list[tuple[TypeLeak, Grown]]:
    """The types that leak, without the accounts `but`, each with what has grown."""
    parts = _Parts(tables, search, but, suppressions)
    growth = Growth(moments, level, parts.series(tables, moments), parts.survivors(moments))
    leaks = []
    for row in growth.leaking():
        members, lines = parts.accounts_of(row), parts.lines_of(tables, row)
        slope, series = growth.slope(row), growth.series[row]
        leak = TypeLeak(
            (pid,), parts.names[row], *slope, int(series[-1]), int(growth.survivors[row].sum()),
            growth.oldest(row), growth.p_values[row], tuple(lines[:_MOST_LINES]), len(lines), search.holder(members),
        )  # fmt: skip
        leaks.append((leak, Grown(members, slope[0], series, ("python",), 0, (leak.type_name,))))
    return leaks


class _Parts:
    """What the search found of each account and each large type: arrays with an element for each pair of them that
    has blocks. `row` is an index into `names`."""

    def __init__(self, tables: Tables, search: AccountsSearch, but: Ints, suppressions: Sequence[Suppression]) -> None:
        names, account, of_type, size = search.bytes_by_type()
        self._group = group_of_accounts(tables)[1]
        self._in_group: Ints = sum_at(int(self._group.max(initial=0)) + 1, self._group[account], size)
        is_left_out = _suppressed(tables, suppressions)
        is_left_out[but] = True
        is_left_out[0] = True  # allocated before the recording, or not in the sample
        chosen = np.flatnonzero(~is_left_out[account] & (of_type != names.index("")))
        large = np.flatnonzero(sum_at(len(names), of_type[chosen], size[chosen]) >= LEAST_BYTES)
        chosen = chosen[np.isin(of_type[chosen], large)]
        self.names = [names[number] for number in large.tolist()]
        self._account, self._size = account[chosen], size[chosen]
        self._row: Ints = np.searchsorted(large, of_type[chosen])

    def series(self, tables: Tables, moments: Moments) -> Ints:
        """The live bytes of each type at each snapshot."""
        pairs, back = np.unique(self._group[self._account] * (len(self.names) + 1) + self._row, return_inverse=True)
        group, row = np.divmod(pairs, len(self.names) + 1)
        part = sum_at(len(pairs), back, self._size) / self._in_group[group]
        series = np.zeros((len(self.names), len(moments.slice)), np.int64)
        for number, (values, _) in enumerate(live_at(tables, moments.slice.tolist())):
            live = sum_at(len(self._in_group), self._group, values)
            series[:, number] = np.bincount(row, live[group] * part, len(self.names))
        return series

    def survivors(self, moments: Moments) -> Ints:
        """The bytes of each type by the interval that allocated them."""
        return by_interval(moments, self._account, self._row, self._size, len(self.names))

    def accounts_of(self, row: int) -> Ints:
        found: Ints = self._account[self._row == row]
        return found

    def lines_of(self, tables: Tables, row: int) -> list[Frame]:
        """The lines that allocated objects of a type, most bytes first; the user's own before other code."""
        is_of = self._row == row
        found = rows_of_paths(tables, tables.account_node[self._account[is_of]], self._size[is_of])
        total = sum_at(len(found.rows), found.row, self._size[is_of])
        order = sorted(range(len(found.rows)), key=lambda one: (not found.rows[one][0].is_own_line, -total[one]))
        return [found.rows[one][1] for one in order]


def _suppressed(tables: Tables, suppressions: Sequence[Suppression]) -> Bools:
    """For each account, whether its call path has a frame that is suppressed."""
    nodes, codes = tables["nodes"], tables["codes"]
    used, code = np.unique(nodes["code"], return_inverse=True)
    names = zip(codes["function"][used].tolist(), codes["file"][used].tolist(), strict=True)
    frames = [(Frame(tables.string(function), tables.string(file), 0),) for function, file in names]
    is_suppressed = np.array([any(one.matches(frame) for one in suppressions) for frame in frames], bool)[code.ravel()]
    is_suppressed[:1] = False
    nearest = follow(np.where(is_suppressed, np.arange(len(nodes)), tables.paths.parent))
    found: Bools = nearest[tables.account_node] != 0
    return found
