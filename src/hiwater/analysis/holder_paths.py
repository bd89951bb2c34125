"""The paths of one search for holders as lists, with what follows from them: what a path dominates, its words, which
lines allocated its blocks, and which paths a person would name or asked for."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath

import numpy as np

from hiwater.analysis.holder_words import Words
from hiwater.analysis.user_lines import Group, rows_of_paths
from hiwater.capture.holders import ROOTS, HolderSearch, StepKind
from hiwater.capture.paths import Frame
from hiwater.capture.tables import Tables

MANY_TIMES = 3
"""A path with this many times as many objects as its holder has the elements of a collection."""
_LEAST_SHARE = 1 / 200
"""Of all bytes: paths that retain less have no group of their own."""

Part = tuple[int, int, int]
"""Of the blocks of a path: the row of the ranking of lines, how many there are, and their bytes."""


class SearchedPaths:
    """The lists are by path number. Numbers count from 1; 0 is none. `children` are the paths that a path dominates
    without another between, `is_own` says that hiwater's modules hold it, and `least` are the bytes that a path
    retains to be large."""

    def __init__(self, tables: Tables, search: HolderSearch) -> None:
        self._tables, self.search = tables, search
        paths = search.paths
        self.numbers = range(1, len(paths) + 1)
        self.parent, self.dominator, self.kind, self.objects, self.bytes, self.retained = (
            [0, *paths[name].tolist()] for name in ("parent", "dominator", "kind", "objects", "bytes", "retained_bytes")
        )
        names = [paths[name].tolist() for name in ("label", "type")]
        text = {number: tables.string(number) for number in {*names[0], *names[1]}}
        self.label, self.type = (["", *map(text.__getitem__, numbers)] for numbers in names)
        self.words = Words(self.parent, self.kind, self.label, self.type, self.objects)
        self.children: dict[int, list[int]] = defaultdict(list)
        self.is_own = [False] * (len(paths) + 1)
        for path in self.numbers:
            self.children[self.dominator[path]].append(path)
            self.is_own[path] = self.is_own[self.parent[path]] or self._is_module_of_ours(path)
        self.own_bytes = sum(size for size, is_own in zip(self.bytes, self.is_own, strict=True) if is_own)
        self.least = max(1, int(search.bytes * _LEAST_SHARE))

    def _is_module_of_ours(self, path: int) -> bool:
        return self.kind[path] == StepKind.module and self.label[path].partition(".")[0] == "hiwater"

    @cached_property
    def allocated(self) -> tuple[list[tuple[Group, Frame]], dict[int, list[Part]]]:
        """The rows of the ranking of lines, and for each path the parts of its blocks whose allocation was recorded.
        Path 0 has what no object holds."""
        known = np.concatenate([self.search.blocks[self.search.blocks["account"] != 0], self.search.unheld])
        node = self._tables.account_node[known["account"].astype(np.int64)]
        found = rows_of_paths(self._tables, node, known["bytes"].astype(np.int64))
        parts: dict[int, list[Part]] = defaultdict(list)
        columns = (known["path"].tolist(), found.row.tolist(), known["blocks"].tolist(), known["bytes"].tolist())
        for path, row, blocks, size in zip(*columns, strict=True):
            parts[path].append((row, blocks, size))
        return found.rows, parts

    def large_children(self, path: int) -> list[int]:
        return [child for child in self.children[path] if self.retained[child] >= self.least]

    def is_dominated(self, path: int, by: int) -> bool:
        while path > by:
            path = self.dominator[path]
        return path == by

    def type_name(self, path: int) -> str:
        """The type of the path's objects; "" for a path of no objects."""
        return self.words.type_name(path) if self.type[path] else ""

    def group_name(self, path: int) -> tuple[str, str]:
        """The type and the holder of the path's objects: what a person tells groups apart by."""
        return self.type_name(path) or "contents", self.words.holder(path)

    def numbered(self, ids: dict[tuple[int, int, str, str], int]) -> list[int]:
        """For each path number a number that is equal for equal steps from equal roots, in all searches that are
        numbered with `ids`."""
        numbers = [0]
        for path in self.numbers:
            step = (numbers[self.parent[path]], self.kind[path], self.label[path], self.type[path])
            numbers.append(ids.setdefault(step, len(ids) + 1))
        return numbers


_FEW = 10
"""A path with fewer objects does not have the elements of a collection."""
_CONTAINERS = frozenset({
    "list", "dict", "tuple", "set", "frozenset", "collections.deque", "collections.OrderedDict",
    "collections.defaultdict", "cell",
})  # fmt: skip

Chosen = Mapping[int, int]
"""By path: the bytes that the path retains outside of other groups."""


def telling(paths: SearchedPaths) -> Chosen:
    """The paths of the groups that a person would name. What is left of a path whose contents are groups themselves
    is a group, too."""
    chosen = {}
    open_paths = list(paths.children[0])
    while open_paths:
        path = open_paths.pop()
        retained = paths.retained[path]
        if retained < paths.least or paths.is_own[path]:
            continue
        large = paths.large_children(path)
        if _ends_at(paths, path, large):
            chosen[path] = retained
            continue
        open_paths.extend(large)
        left = retained - sum(paths.retained[child] for child in large)
        if left >= paths.least:
            chosen[path] = left
    return chosen


def _ends_at(paths: SearchedPaths, path: int, large: Sequence[int]) -> bool:
    if paths.kind[path] in ROOTS:
        return False
    retained = paths.retained[path]
    most = max((paths.retained[child] for child in large), default=0)
    if paths.bytes[path] * 2 >= retained:
        return True
    if paths.type[path] in _CONTAINERS and most * 2 >= retained:
        return False
    fewest = max(_FEW, MANY_TIMES * paths.objects[paths.parent[path]])
    return bool(paths.objects[path] >= fewest)


def matching(paths: SearchedPaths, what: str) -> Chosen:
    """The paths of objects of a type, or with objects that a line allocated."""
    file, _, line = what.rpartition(":")
    is_by_line = file and line.isdecimal()
    is_chosen = _is_allocated_at(paths, file, int(line)) if is_by_line else _is_of_type(paths, what)
    return {path: paths.retained[path] for path in paths.numbers if paths.type[path] and is_chosen(path)}


def _is_of_type(paths: SearchedPaths, pattern: str) -> Callable[[int], bool]:
    named = {
        name
        for name in set(paths.type)
        if any(fnmatch.fnmatchcase(known, pattern) for known in (name, name.rpartition(".")[2]))
    }
    return lambda path: paths.type[path] in named


def _is_allocated_at(paths: SearchedPaths, file: str, line: int) -> Callable[[int], bool]:
    wanted = PurePath(file).parts
    rows, parts = paths.allocated
    chosen = {
        number for number, (_, frame) in enumerate(rows)
        if frame.line == line and PurePath(frame.file).parts[-len(wanted) :] == wanted
    }  # fmt: skip
    return lambda path: any(row in chosen for row, _, _ in parts.get(path, ()))
