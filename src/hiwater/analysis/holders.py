"""What holds the interpreter's objects: groups of like objects, how each is reached from a root, what it retains, and who allocated it.

A group is a path of a search (`capture.holders`) that a person would name: the elements of a collection, or an object that has most of its memory
itself. Groups do not overlap. What they retain follows from dominators: it would be freed if nothing held the objects of the group.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import PurePath

import numpy as np

from hiwater._os.sizes import format_size
from hiwater.analysis.holder_words import Words
from hiwater.analysis.user_lines import Group, rows_of_paths
from hiwater.capture import opening
from hiwater.capture.holders import ROOTS, HolderSearch, StepKind, last_search, read_searches
from hiwater.capture.paths import Frame, Ints, numbered
from hiwater.capture.tables import Tables
from hiwater.errors import BadRequest, MomentOutOfRange

_FEW = 10
_MANY_TIMES = 3
"""A path with at least _FEW objects, and _MANY_TIMES as many as its holder, has the elements of a collection."""
_CONTAINERS = frozenset({"list", "dict", "tuple", "set", "frozenset", "collections.deque", "collections.OrderedDict", "collections.defaultdict", "cell"})  # fmt: skip
_LEAST_SHARE = 1 / 200
"""Of all bytes: groups that retain less are left out."""
_NOTHING = 0
"""The path of what no object holds."""
_Part = tuple[int, int, int]
"""Of the blocks of a path: the row of the ranking of lines, how many there are, and their bytes."""
_MOST_SITES, _MOST_CONTENTS, _MOST_OTHERS = 4, 4, 3
_MOST_PARTS = 20  # a type with less than this part of the bytes is not named


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the objects of a group: their number, their bytes with the buffers that belong to them alone, and what they retain."""

    count: int = 0
    bytes: int = 0
    retained_bytes: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.count + other.count, self.bytes + other.bytes, self.retained_bytes + other.retained_bytes)


@dataclass(frozen=True, slots=True)
class Site:
    """A line that allocated objects of a group. `group` says whether it is the user's own line, an import, or other code."""

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

    `count` objects of the type `type_name` take `bytes`, with the buffers that belong to them alone; without them, `retained_bytes` would be free.
    `held_by` names the holder in words, `path` each step from a root to the objects, and `also_held_by` others that refer to some of them. `sites` are the
    lines that allocated the objects, most bytes first, as far as the recording saw it; `retained_sites` are those of all that is retained. `contents` are
    types among what is retained. `earlier` has the figures of an earlier search.
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

    `objects` and `bytes` are those of the interpreter's whole heap; `own_bytes` is the part that hiwater's modules hold, which no group has. `types` are
    sums over the listed paths. `unheld` are the lines that allocated `unheld_bytes` in blocks to which no object was found: of C code, or the
    interpreter's own. `since` is the earlier search that `earlier` figures are of. `search` has the search's times and name.
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
    """What the search `number` of a capture found, counted from 1; the last one by default. With `since`, an earlier search, groups that have grown most come
    first.

    `what` chooses: a type ("Row", "app.models.Row", "app.*"), or a line that allocated ("db.py:41"); "" is the groups that retain most. With `of_target`,
    the only group is that of the object for which the search was made, if it was found. Raises MomentOutOfRange if there is no such search, BadRequest for a
    search that failed.
    """
    searches = read_searches(tables)
    search = _chosen(searches, number)
    earlier = _chosen(searches, since) if since is not None else None
    reading = _Reading(tables, search)
    if of_target and search.target:
        chosen = [search.target]
    elif what:
        chosen = reading.matching(what)
    else:
        chosen = reading.telling()
    groups = _merged(map(reading.group, chosen))
    if earlier is not None:
        groups = _with_earlier(groups, reading.figures_by_group(chosen, _Reading(tables, earlier)))
    # What was asked for may lie inside one another, so that what it retains is in several groups.
    first = attrgetter("bytes" if what else "growth_bytes")
    groups.sort(key=lambda one: (-first(one), -one.retained_bytes, one.held_by, one.type_name))
    return Holders(
        search, earlier, tuple(groups[:limit]), max(0, len(groups) - limit), *reading.unheld(), reading.types(), search.objects, search.bytes,
        reading.own_bytes, bool(tables.header["sample_bytes"]), what,
    )  # fmt: skip


def read_file(path: str, what: str, limit: int) -> Holders:
    """What the last search of the capture at `path` found."""
    return find_holders(opening.read(path), what=what, of_target=not what, limit=limit)


class AccountsSearch:
    """What the last search of a capture tells of the blocks of accounts."""

    def __init__(self, tables: Tables, search: HolderSearch) -> None:
        self._reading = _Reading(tables, search)
        self._search = search

    def holder(self, accounts: Ints) -> str:
        """What holds most of their blocks: the nearest holder of which there are few."""
        return self._reading.holder_of_accounts(accounts)

    def types(self, accounts: Ints) -> tuple[str, ...]:
        """The types of the objects to which most of their blocks belong, most bytes first."""
        held = self._search.blocks[np.isin(self._search.blocks["account"], accounts)]
        contents = _summed(
            Content(self._reading.type_name(path), 0, size)
            for path, size in zip(held["path"].tolist(), held["bytes"].tolist(), strict=True)
        )
        whole = sum(one.bytes for one in contents)
        return tuple(
            one.type_name for one in contents[:_MOST_CONTENTS] if one.type_name and one.bytes * _MOST_PARTS >= whole
        )

    def bytes_by_type(self) -> tuple[list[str], Ints, Ints, Ints]:
        """The names of all types, "" for what belongs to no object; then for each account and type that it has blocks of: the account, the index of the type, and the bytes."""
        blocks = np.concatenate([self._search.blocks, self._search.unheld])
        names, of_path = numbered(map(self._reading.type_name, range(len(self._search.paths) + 1)))
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
            "record with `hiwater run --holders`, call `hiwater.holders()` in the program, or name a running process",
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
    """Groups that a person cannot tell apart become one: objects that are referred to once and those that are referred to more often are different
    paths."""
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


def _with_earlier(groups: list[HolderGroup], earlier: dict[tuple[str, str], Figures]) -> list[HolderGroup]:
    return [replace(group, earlier=earlier.get((group.type_name, group.held_by), Figures())) for group in groups]


class _Reading:
    """The paths of one search as lists, with what follows from them. Path numbers count from 1; 0 is none."""

    def __init__(self, tables: Tables, search: HolderSearch) -> None:
        self._tables, self._search = tables, search
        paths = search.paths
        self._size = len(paths)
        self._parent, self._dominator, self._kind, self._objects, self._bytes, self._retained = (
            [0, *paths[name].tolist()] for name in ("parent", "dominator", "kind", "objects", "bytes", "retained_bytes")
        )
        names = [paths[name].tolist() for name in ("label", "type")]
        text = {number: tables.string(number) for number in {*names[0], *names[1]}}
        self._label, self._type = (["", *map(text.__getitem__, numbers)] for numbers in names)
        self._words = Words(self._parent, self._kind, self._label, self._type, self._objects)
        self._children: dict[int, list[int]] = defaultdict(list)
        for path in range(1, self._size + 1):
            self._children[self._dominator[path]].append(path)
        self._is_own = [False] * (self._size + 1)
        for path in range(1, self._size + 1):
            self._is_own[path] = self._is_own[self._parent[path]] or self._is_module_of_ours(path)
        self.own_bytes = sum(size for size, is_own in zip(self._bytes, self._is_own, strict=True) if is_own)
        self._least = max(1, int(search.bytes * _LEAST_SHARE))
        self._bytes_left: dict[int, int] = {}

    def _is_module_of_ours(self, path: int) -> bool:
        return self._kind[path] == StepKind.module and self._label[path].partition(".")[0] == "hiwater"

    @cached_property
    def _rows(self) -> tuple[list[tuple[Group, Frame]], dict[int, list[_Part]]]:
        """The rows of the ranking of lines, and for each path the parts of its blocks whose allocation was recorded. Path 0 has what no object
        holds."""
        known = np.concatenate([self._search.blocks[self._search.blocks["account"] != 0], self._search.unheld])
        found = rows_of_paths(self._tables, self._tables.account_node[known["account"].astype(np.int64)])
        parts: dict[int, list[_Part]] = defaultdict(list)
        columns = (known["path"].tolist(), found.row.tolist(), known["blocks"].tolist(), known["bytes"].tolist())
        for path, row, blocks, size in zip(*columns, strict=True):
            parts[path].append((row, blocks, size))
        return found.rows, parts

    # Which paths

    def telling(self) -> list[int]:
        """The paths of the groups that a person would name. What is left of a path whose contents are groups themselves is a group, too."""
        chosen = []
        open_paths = list(self._children[0])
        while open_paths:
            path = open_paths.pop()
            retained = self._retained[path]
            if retained < self._least or self._is_own[path]:
                continue
            large = [child for child in self._children[path] if self._retained[child] >= self._least]
            if self._ends_at(path, large):
                self._bytes_left[path] = retained
                chosen.append(path)
                continue
            open_paths.extend(large)
            left = retained - sum(self._retained[child] for child in large)
            if left >= self._least:
                self._bytes_left[path] = left
                chosen.append(path)
        return chosen

    def _ends_at(self, path: int, large: Sequence[int]) -> bool:
        if self._kind[path] in ROOTS:
            return False
        retained = self._retained[path]
        most = max((self._retained[child] for child in large), default=0)
        if self._bytes[path] * 2 >= retained:
            return True
        if self._type[path] in _CONTAINERS and most * 2 >= retained:
            return False
        fewest = max(_FEW, _MANY_TIMES * self._objects[self._parent[path]])
        return bool(self._objects[path] >= fewest)

    def matching(self, what: str) -> list[int]:
        """The paths of objects of a type, or with objects that a line allocated."""
        file, _, line = what.rpartition(":")
        is_chosen = self._is_allocated_at(file, int(line)) if file and line.isdecimal() else self._is_of_type(what)
        return [path for path in range(1, self._size + 1) if self._type[path] and is_chosen(path)]

    def _is_of_type(self, pattern: str) -> Callable[[int], bool]:
        named = {
            name
            for name in set(self._type)
            if any(fnmatch.fnmatchcase(known, pattern) for known in (name, name.rpartition(".")[2]))
        }
        return lambda path: self._type[path] in named

    def _is_allocated_at(self, file: str, line: int) -> Callable[[int], bool]:
        wanted = PurePath(file).parts
        rows, parts = self._rows
        chosen = {
            number for number, (_, frame) in enumerate(rows)
            if frame.line == line and PurePath(frame.file).parts[-len(wanted) :] == wanted
        }  # fmt: skip
        return lambda path: any(row in chosen for row, _, _ in parts.get(path, ()))

    # What is said of one

    def group(self, path: int) -> HolderGroup:
        words, inside = self._words, self._inside(path)
        is_object = bool(self._type[path])
        return HolderGroup(
            type_name=words.type_name(path) if is_object else "contents",
            count=self._objects[path] if is_object else 0,
            bytes=self._bytes[path],
            retained_bytes=self._bytes_left.get(path, self._retained[path]),
            held_by=words.holder(path),
            path=words.steps(path),
            also_held_by=self._others(path),
            sites=self._sites_of([path]),
            retained_sites=self._sites_of(inside),
            contents=_summed(self._content(inside), _MOST_CONTENTS),
        )

    def _sites_of(self, paths: Iterable[int]) -> tuple[Site, ...]:
        """The lines that allocated the objects of these paths: those with most bytes, and the user's own before other code."""
        rows, parts = self._rows
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for path in paths:
            for row, blocks, size in parts.get(path, ()):
                sums[row][0] += blocks
                sums[row][1] += size
        sites = [Site(rows[row][1], rows[row][0], *figures) for row, figures in sums.items()]
        sites.sort(key=lambda site: (site.group == Group.other, -site.bytes, site.frame.file, site.frame.line))
        return tuple(sites[:_MOST_SITES])

    def _inside(self, path: int) -> list[int]:
        """The path, and those that it dominates, without groups of their own."""
        is_part = self._bytes_left.get(path, self._retained[path]) != self._retained[path]
        open_paths, found = [path], []
        while open_paths:
            at = open_paths.pop()
            found.append(at)
            inside = self._children[at]
            open_paths.extend(child for child in inside if not is_part or self._retained[child] < self._least)
        return found

    def _content(self, paths: Iterable[int]) -> Iterable[Content]:
        return (
            Content(self._words.type_name(at), self._objects[at], self._bytes[at]) for at in paths if self._type[at]
        )

    def _others(self, path: int) -> tuple[str, ...]:
        """Other holders of the path's objects, most references first: not what they hold themselves."""
        rows = self._search.references
        rows = rows[rows["to"] == path]
        others = [
            int(row["from"])
            for row in rows[np.argsort(-rows["references"].astype(np.int64), kind="stable")]
            if int(row["from"]) != self._parent[path] and not self._is_dominated(int(row["from"]), path)
        ]
        named = dict.fromkeys(self._words.noun(other) for other in others)
        named.pop(self._words.holder(path), None)
        return tuple(named)[:_MOST_OTHERS]

    def _is_dominated(self, path: int, by: int) -> bool:
        while path > by:
            path = self._dominator[path]
        return path == by

    def type_name(self, path: int) -> str:
        """The type of the path's objects; "" for a path of no objects."""
        return self._words.type_name(path) if self._type[path] else ""

    def types(self) -> tuple[Content, ...]:
        """All types of listed paths, most bytes first."""
        return _summed(self._content(range(1, self._size + 1)))

    def unheld(self) -> tuple[tuple[Site, ...], int]:
        """The lines with most bytes in blocks that no object was found to hold; and the sum over all."""
        return self._sites_of([_NOTHING]), int(self._search.unheld["bytes"].sum())

    def holder_of_accounts(self, accounts: Ints) -> str:
        """What holds most of the blocks of these accounts."""
        held, unheld = (rows[np.isin(rows["account"], accounts)] for rows in (self._search.blocks, self._search.unheld))
        by_path = np.bincount(held["path"], held["bytes"], 1)
        path = int(by_path.argmax())
        if unheld["bytes"].sum() > by_path[path]:
            return "no object that was found (C code, or the interpreter)"
        if path == 0:
            return ""
        holder = self._parent[path]
        while self._type[holder] and _MANY_TIMES * self._objects[holder] > self._objects[path]:
            holder = self._parent[holder]
        return self._words.noun(holder) or self._words.holder(path)

    # Against an earlier search

    def figures_by_group(self, chosen: Sequence[int], earlier: _Reading) -> dict[tuple[str, str], Figures]:
        """For the groups of these paths, the figures of the same paths in an earlier search. What is left of a path has its own objects' alone."""
        ids: dict[tuple[int, int, str, str], int] = {}
        then: dict[int, Figures] = {}
        for number, figures in zip(earlier.numbered(ids), earlier.figures(), strict=True):
            then[number] = then.get(number, Figures()) + figures
        numbers = self.numbered(ids)
        found: dict[tuple[str, str], Figures] = {}
        counted = set()
        for path in chosen:
            number = numbers[path - 1]
            before = then.get(number)
            if before is None or number in counted:
                continue
            counted.add(number)
            left = self._bytes_left.get(path)
            if left is not None and left != self._retained[path]:
                large = {numbers[child - 1] for child in self._children[path] if self._retained[child] >= self._least}
                inside = sum(then[one].retained_bytes for one in large if one in then)
                before = replace(before, retained_bytes=max(0, before.retained_bytes - inside))
            key = self._words.type_name(path) if self._type[path] else "contents", self._words.holder(path)
            found[key] = found.get(key, Figures()) + before
        return found

    def figures(self) -> list[Figures]:
        """Those of each path."""
        return list(map(Figures, self._objects[1:], self._bytes[1:], self._retained[1:]))

    def numbered(self, ids: dict[tuple[int, int, str, str], int]) -> list[int]:
        """For each path a number that is equal for equal steps from equal roots, in all searches that are numbered with `ids`."""
        numbers = [0]
        for path in range(1, self._size + 1):
            step = (numbers[self._parent[path]], self._kind[path], self._label[path], self._type[path])
            numbers.append(ids.setdefault(step, len(ids) + 1))
        return numbers[1:]
