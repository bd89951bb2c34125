"""What holds the interpreter's objects: groups of like objects, how each is reached from a root, what it retains, and
who allocated it.

A group is a path of a search (`capture.holders`) that a person would name: the elements of a collection, or an object
that has most of its memory itself. Groups do not overlap. What they retain follows from dominators: it would be freed
if nothing held the objects of the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from hiwater._os.sizes import format_size
from hiwater.analysis.holder_paths import MANY_TIMES, Chosen, SearchedPaths, matching, telling
from hiwater.analysis.user_lines import Group
from hiwater.capture import opening
from hiwater.capture.holders import HolderSearch, last_search, read_searches
from hiwater.capture.paths import Frame, Ints, numbered
from hiwater.capture.tables import Tables
from hiwater.errors import BadRequest, MomentOutOfRange

_NOTHING = 0
"""The path of what no object holds."""
_MOST_SITES, _MOST_CONTENTS, _MOST_OTHERS = 4, 4, 3
_MOST_PARTS = 20  # a type with less than this part of the bytes is not named


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the objects of a group: their number, their bytes with the buffers that belong to them alone, and what they
    retain."""

    count: int = 0
    bytes: int = 0
    retained_bytes: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.count + other.count, self.bytes + other.bytes, self.retained_bytes + other.retained_bytes)


@dataclass(frozen=True, slots=True)
class Site:
    """A line that allocated objects of a group. `group` says whether it is the user's own line, an import, or other
    code."""

    frame: Frame
    group: Group
    blocks: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.frame.file}:{self.frame.line}"


@dataclass(frozen=True, slots=True)
class Content:
    """Objects of one type among what a group retains."""

    type_name: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HolderGroup:
    """Like objects that are held in the same way.

    `count` objects of the type `type_name` take `bytes`, with the buffers that belong to them alone; without them,
    `retained_bytes` would be free. `held_by` names the holder in words, `path` each step from a root to the objects,
    and `also_held_by` others that refer to some of them. `sites` are the lines that allocated the objects, most bytes
    first, as far as the recording saw it; `retained_sites` are those of all that is retained. `contents` are types
    among what is retained. `earlier` has the figures of an earlier search.
    """

    type_name: str
    count: int
    bytes: int
    retained_bytes: int
    held_by: str
    path: tuple[str, ...]
    also_held_by: tuple[str, ...]
    sites: tuple[Site, ...]
    retained_sites: tuple[Site, ...]
    contents: tuple[Content, ...]
    earlier: Figures | None = None

    @property
    def allocated_at(self) -> str:
        """The line that allocated most of them, "file:line"; "" if the recording did not see it."""
        return str(self.sites[0]) if self.sites else ""

    @property
    def growth_bytes(self) -> int:
        """By how much what they retain has grown since the earlier search."""
        return self.retained_bytes - (self.earlier.retained_bytes if self.earlier is not None else 0)

    def __repr__(self) -> str:
        at = f", allocated at {self.allocated_at}" if self.sites else ""
        return f"<{self.count:,} × {self.type_name}, {format_size(self.retained_bytes)}, held by {self.held_by}{at}>"


@dataclass(frozen=True, slots=True)
class Holders:
    """The result of one search: the groups that retain most, or those that were asked for, and all types.

    `objects` and `bytes` are those of the interpreter's whole heap; `own_bytes` is the part that hiwater's modules
    hold, which no group has. `types` are sums over the listed paths. `unheld` are the lines that allocated
    `unheld_bytes` in blocks to which no object was found: of C code, or the interpreter's own. `since` is the earlier
    search that `earlier` figures are of. `search` has the search's times and name.
    """

    search: HolderSearch
    since: HolderSearch | None
    groups: tuple[HolderGroup, ...]
    left_out: int
    unheld: tuple[Site, ...]
    unheld_bytes: int
    types: tuple[Content, ...]
    objects: int
    bytes: int
    own_bytes: int
    is_sampled: bool
    what: str

    def __repr__(self) -> str:
        first = f"; most: {self.groups[0]!r}" if self.groups else ""
        return (
            f"<hiwater.Holders {format_size(self.bytes)} in {self.objects:,} objects, {len(self.groups)} groups{first}>"
        )


def find_holders(
    tables: Tables,
    *,
    number: int | None = None,
    since: int | None = None,
    what: str = "",
    of_target: bool = False,
    limit: int = 10,
) -> Holders:
    """What the search `number` of a capture found, counted from 1; the last one by default. With `since`, an earlier
    search, groups that have grown most come first.

    `what` chooses: a type ("Row", "app.models.Row", "app.*"), or a line that allocated ("db.py:41"); "" is the groups
    that retain most. With `of_target`, the only group is that of the object for which the search was made, if it was
    found. Raises MomentOutOfRange if there is no such search, BadRequest for a search that failed.
    """
    searches = read_searches(tables)
    search = _chosen(searches, number)
    earlier = _chosen(searches, since) if since is not None else None
    paths = SearchedPaths(tables, search)
    if of_target and search.target:
        chosen: Chosen = {search.target: paths.retained[search.target]}
    else:
        chosen = matching(paths, what) if what else telling(paths)
    groups = _merged(_group(paths, path, retained) for path, retained in chosen.items())
    if earlier is not None:
        groups = _with_earlier(groups, _earlier_figures(paths, chosen, SearchedPaths(tables, earlier)))
    # What was asked for may lie inside one another, so that what it retains is in several groups.
    first = attrgetter("bytes" if what else "growth_bytes")
    groups.sort(key=lambda one: (-first(one), -one.retained_bytes, one.held_by, one.type_name))
    return Holders(
        search, earlier, tuple(groups[:limit]), max(0, len(groups) - limit), _sites_of(paths, [_NOTHING]),
        int(search.unheld["bytes"].sum()), _summed(_content(paths, paths.numbers)), search.objects, search.bytes,
        paths.own_bytes, bool(tables.header["sample_bytes"]), what,
    )  # fmt: skip


def read_file(path: str, what: str, limit: int) -> Holders:
    """What the last search of the capture at `path` found."""
    return find_holders(opening.read(path), what=what, of_target=not what, limit=limit)


class AccountsSearch:
    """What the last search of a capture tells of the blocks of accounts."""

    def __init__(self, tables: Tables, search: HolderSearch) -> None:
        self._paths = SearchedPaths(tables, search)
        self._search = search

    def holder(self, accounts: Ints) -> str:
        """What holds most of their blocks: the nearest holder of which there are few."""
        held, unheld = (rows[np.isin(rows["account"], accounts)] for rows in (self._search.blocks, self._search.unheld))
        by_path = np.bincount(held["path"], held["bytes"], 1)
        path = int(by_path.argmax())
        if unheld["bytes"].sum() > by_path[path]:
            return "no object that was found (C code, or the interpreter)"
        if path == 0:
            return ""
        paths = self._paths
        holder = paths.parent[path]
        while paths.type[holder] and MANY_TIMES * paths.objects[holder] > paths.objects[path]:
            holder = paths.parent[holder]
        return paths.words.noun(holder) or paths.words.holder(path)

    def types(self, accounts: Ints) -> tuple[str, ...]:
        """The types of the objects to which most of their blocks belong, most bytes first."""
        held = self._search.blocks[np.isin(self._search.blocks["account"], accounts)]
        contents = _summed(
            Content(self._paths.type_name(path), 0, size)
            for path, size in zip(held["path"].tolist(), held["bytes"].tolist(), strict=True)
        )
        whole = sum(one.bytes for one in contents)
        return tuple(
            one.type_name for one in contents[:_MOST_CONTENTS] if one.type_name and one.bytes * _MOST_PARTS >= whole
        )

    def are_parts(self, parts: Ints, accounts: Ints) -> bool:
        """Whether blocks of the accounts `parts` belong to the objects with most bytes of `accounts`, or to objects
        that these hold."""
        blocks = self._search.blocks
        path = int(
            np.bincount(blocks["path"], np.where(np.isin(blocks["account"], accounts), blocks["bytes"], 0), 1).argmax()
        )
        return path != 0 and any(
            self._paths.is_dominated(of_part, path)
            for of_part in np.unique(blocks["path"][np.isin(blocks["account"], parts)]).tolist()
        )

    def bytes_by_type(self) -> tuple[list[str], Ints, Ints, Ints]:
        """The names of all types, "" for what belongs to no object; then for each account and type that it has
        blocks of: the account, the index of the type, and the bytes."""
        blocks = np.concatenate([self._search.blocks, self._search.unheld])
        names, of_path = numbered(map(self._paths.type_name, range(len(self._search.paths) + 1)))
        account, size = (blocks[field].astype(np.int64) for field in ("account", "bytes"))
        return names, account, of_path[blocks["path"]], size


def accounts_search(tables: Tables) -> AccountsSearch | None:
    """The last search that found something; None without one."""
    search = last_search(tables)
    return AccountsSearch(tables, search) if search is not None else None


def _chosen(searches: Sequence[HolderSearch], number: int | None) -> HolderSearch:
    if not searches:
        raise MomentOutOfRange(
            "the capture has no search for holders",
            "record with `hiwater run --holders`, call `hiwater.holders()` in the program, or give the id of a running"
            " process",
        )
    if number is None:
        number = len(searches)
    if not 1 <= number <= len(searches):
        raise MomentOutOfRange(f"there is no search {number}", f"the capture has searches 1 to {len(searches)}")
    search = searches[number - 1]
    if search.failure:
        raise BadRequest(f"search {number} failed: {search.failure}", "choose another with --search N, or search again")
    return search


def _merged(groups: Iterable[HolderGroup]) -> list[HolderGroup]:
    """Groups that a person cannot tell apart become one: objects that are referred to once and those that are
    referred to more often are different paths."""
    known: dict[tuple[str, str], HolderGroup] = {}
    for group in groups:
        key = group.type_name, group.held_by
        known[key] = _sum(known[key], group) if key in known else group
    return list(known.values())


def _sum(one: HolderGroup, other: HolderGroup) -> HolderGroup:
    larger = max(one, other, key=lambda group: group.bytes)
    return replace(
        larger,
        count=one.count + other.count,
        bytes=one.bytes + other.bytes,
        retained_bytes=one.retained_bytes + other.retained_bytes,
        also_held_by=tuple(dict.fromkeys((*one.also_held_by, *other.also_held_by)))[:_MOST_OTHERS],
        sites=_summed_sites([*one.sites, *other.sites]),
        retained_sites=_summed_sites([*one.retained_sites, *other.retained_sites]),
        contents=_summed([*one.contents, *other.contents], _MOST_CONTENTS),
    )


def _summed_sites(sites: Iterable[Site]) -> tuple[Site, ...]:
    sums: dict[tuple[Group, Frame], Site] = {}
    for site in sites:
        known = sums.get((site.group, site.frame), replace(site, blocks=0, bytes=0))
        sums[site.group, site.frame] = replace(known, blocks=known.blocks + site.blocks, bytes=known.bytes + site.bytes)
    return tuple(sorted(sums.values(), key=lambda site: -site.bytes))[:_MOST_SITES]


def _summed(contents: Iterable[Content], most: int | None = None) -> tuple[Content, ...]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in contents:
        sums[one.type_name][0] += one.count
        sums[one.type_name][1] += one.bytes
    rows = [Content(name, count, size) for name, (count, size) in sums.items()]
    rows.sort(key=lambda row: (-row.bytes, row.type_name))
    return tuple(rows[:most])


def _with_earlier(groups: list[HolderGroup], earlier: Mapping[tuple[str, str], Figures]) -> list[HolderGroup]:
    return [replace(group, earlier=earlier.get((group.type_name, group.held_by), Figures())) for group in groups]


def _group(paths: SearchedPaths, path: int, retained: int) -> HolderGroup:
    """What is said of a path that retains so many bytes outside of other groups."""
    inside = _inside(paths, path, retained)
    type_name, holder = paths.group_name(path)
    return HolderGroup(
        type_name=type_name,
        count=paths.objects[path] if paths.type[path] else 0,
        bytes=paths.bytes[path],
        retained_bytes=retained,
        held_by=holder,
        path=paths.words.steps(path),
        also_held_by=_others(paths, path),
        sites=_sites_of(paths, [path]),
        retained_sites=_sites_of(paths, inside),
        contents=_summed(_content(paths, inside), _MOST_CONTENTS),
    )


def _sites_of(paths: SearchedPaths, chosen: Iterable[int]) -> tuple[Site, ...]:
    """The lines that allocated the objects of these paths: those with most bytes, and the user's own before other
    code."""
    rows, parts = paths.allocated
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for path in chosen:
        for row, blocks, size in parts.get(path, ()):
            sums[row][0] += blocks
            sums[row][1] += size
    sites = [Site(rows[row][1], rows[row][0], *figures) for row, figures in sums.items()]
    sites.sort(key=lambda site: (site.group == Group.other, -site.bytes, site.frame.file, site.frame.line))
    return tuple(sites[:_MOST_SITES])


def _inside(paths: SearchedPaths, path: int, retained: int) -> list[int]:
    """The path, and those that it dominates, without groups of their own."""
    is_part = retained != paths.retained[path]
    open_paths, found = [path], []
    while open_paths:
        at = open_paths.pop()
        found.append(at)
        inside = paths.children[at]
        open_paths.extend(child for child in inside if not is_part or paths.retained[child] < paths.least)
    return found


def _content(paths: SearchedPaths, chosen: Iterable[int]) -> Iterable[Content]:
    return (Content(paths.type_name(at), paths.objects[at], paths.bytes[at]) for at in chosen if paths.type[at])


def _others(paths: SearchedPaths, path: int) -> tuple[str, ...]:
    """Other holders of the path's objects, most references first: not what they hold themselves."""
    rows = paths.search.references
    rows = rows[rows["to"] == path]
    others = [
        int(row["from"])
        for row in rows[np.argsort(-rows["references"].astype(np.int64), kind="stable")]
        if int(row["from"]) != paths.parent[path] and not paths.is_dominated(int(row["from"]), path)
    ]
    named = dict.fromkeys(paths.words.noun(other) for other in others)
    named.pop(paths.words.holder(path), None)
    return tuple(named)[:_MOST_OTHERS]


def _earlier_figures(paths: SearchedPaths, chosen: Chosen, earlier: SearchedPaths) -> Mapping[tuple[str, str], Figures]:
    """For the groups of these paths, the figures of the same paths in an earlier search. What is left of a path has
    its own objects' alone."""
    ids: dict[tuple[int, int, str, str], int] = {}
    then: dict[int, Figures] = {}
    before = earlier.numbered(ids)
    for path in earlier.numbers:
        figures = Figures(earlier.objects[path], earlier.bytes[path], earlier.retained[path])
        then[before[path]] = then.get(before[path], Figures()) + figures
    numbers = paths.numbered(ids)
    found: dict[tuple[str, str], Figures] = {}
    counted = set()
    for path, retained in chosen.items():
        number = numbers[path]
        if number not in then or number in counted:
            continue
        counted.add(number)
        figures = then[number]
        if retained != paths.retained[path]:
            large = {numbers[child] for child in paths.large_children(path)}
            inside = sum(then[one].retained_bytes for one in large if one in then)
            figures = replace(figures, retained_bytes=max(0, figures.retained_bytes - inside))
        key = paths.group_name(path)
        found[key] = found.get(key, Figures()) + figures
    return found
