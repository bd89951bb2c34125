"""Which paths of a search for holders a person would name, or asked for."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from hiwater.analysis.holder_paths import MANY_TIMES, SearchedPaths
from hiwater.capture.holders import ROOTS

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
