"""The native frames of a capture, which `hiwater run --native` records: left out, among Python's, or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import CODE_NATIVE, CODE_PYTHON
from hiwater.capture.reader import Contents
from hiwater.capture.references import Records

TABLE = "modules"
GENERATED = "[generated code]"
_WITH_NODES = ("accounts", "markers", "large_blocks")
_MOST_FOR_EACH, _MOST_ALWAYS = 4, 1 << 20  # frames shown, for each recorded one and besides


class Frames(StrEnum):
    """Which frames a report shows."""

    python = "python"
    mixed = "mixed"
    native = "native"


@dataclass(frozen=True, slots=True)
class Module:
    """A file with native code: its path in the recorded process, and what identifies it: its build-id in hexadecimal,
    or "headers:" and a sum of its headers. That of code in no file has the path GENERATED, and a `start`."""

    path: str
    identity: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class NativePlace:
    """A function, and the line of its source that runs; `file` is "" and `line` 0 where that is not known."""

    function: str
    file: str = ""
    line: int = 0


Namer = Callable[[Module, Sequence[int]], Sequence[Sequence[NativePlace]]]
"""What these return addresses, which are counted from the module's start, are in: a function, and below it those that
were put inline there. Nothing for one that is not to be shown."""


def has_native_frames(contents: Contents) -> bool:
    return len(contents.tables.get(TABLE, ())) > 0


def _is_native(contents: Contents) -> npt.NDArray[np.bool_]:
    """For each node, whether it is a native frame."""
    nodes, codes = contents.tables["nodes"], contents.tables["codes"]
    is_native: npt.NDArray[np.bool_] = (codes["kind"] == CODE_NATIVE)[nodes["code"]]
    is_native[:1] = False
    return is_native


def without(contents: Contents) -> Contents:
    """The contents with all that native frames hold at the Python frames that called them, as if only these had been
    recorded."""
    nodes, is_native = contents.tables["nodes"], _is_native(contents)
    caller = _nearest(nodes["parent"], is_native)
    number = np.cumsum(~is_native) - 1
    kept = nodes[~is_native].copy()
    kept["parent"] = number[caller[kept["parent"]]]
    return _at_nodes(contents, kept, number[caller])


def _nearest(parent: npt.NDArray[np.uint32], is_left_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """For each node the next one, it or above it, that is not left out. The root never is."""
    nearest = np.where(is_left_out, parent, np.arange(len(parent)))
    while not np.array_equal(further := nearest[nearest], nearest):
        nearest = further
    return nearest


def _at_nodes(contents: Contents, nodes: Records, place: npt.NDArray[np.int64]) -> Contents:
    """The contents with other nodes; `place` has the new number of each former one."""
    tables = {**contents.tables, "nodes": nodes}
    for name in _WITH_NODES:
        if name in tables:
            moved = tables[name].copy()
            moved["node"] = place[moved["node"]]
            tables[name] = moved
    return replace(contents, tables=tables)


def shown(
    contents: Contents, frames: Frames, text: Callable[[int], str], add: Callable[[str], int], name: Namer
) -> Contents:
    """The contents with native frames by their names: those at one place under one caller are one. `text` has the
    recorded strings, `add` adds one. Of Python's frames all stay or, if native ones are to be shown alone, none. Where
    inlined functions would fill memory, there are none."""
    named = _Named(contents, text, add, name)
    nodes = contents.tables["nodes"]
    count = named.lengths[named.at_node]
    if count.sum() > _MOST_FOR_EACH * len(nodes) + _MOST_ALWAYS:
        count = np.minimum(count, 1)
    if frames is Frames.native:
        count[(named.codes["kind"] == CODE_PYTHON)[nodes["code"]]] = 0
        count[0] = 1
    entry = _Entries(nodes["parent"], count)
    # Native ones are equal where they have the same code and line; others have numbers of their own.
    what = len(named.pairs) + entry.node.astype(np.int64)
    is_native = named.at_node[entry.node] >= 0
    what[is_native] = named.of_chain[(named.first[named.at_node[entry.node]] + entry.place)[is_native]]
    kept, place = _merged(entry, what, len(named.pairs) + len(nodes))
    changed_nodes = nodes[entry.node[kept]].copy()
    changed_nodes["parent"] = place[entry.above[kept]]
    of_pair = what[kept[is_native[kept]]]
    for column, field in enumerate(("code", "line")):
        changed_nodes[field][is_native[kept]] = named.pairs[of_pair, column]
    changed = replace(contents, tables={**contents.tables, "codes": named.codes})
    return _at_nodes(changed, changed_nodes, place[entry.last])


class _Entries:
    """What is to be shown instead of nodes: for each as many entries as `count` says, below each other; one above all.
    For each entry the node and its place among those of that node, the entry above it, and its depth; for each node
    its last entry, or that of the next node above which has one."""

    def __init__(self, parent: npt.NDArray[np.uint32], count: npt.NDArray[np.int64]) -> None:
        begin = np.cumsum(count) - count
        self.node = np.repeat(np.arange(len(count), dtype=np.int32), count)
        self.place = np.arange(len(self.node), dtype=np.int32) - begin[self.node].astype(np.int32)
        self.last = (begin + count - 1)[_nearest(parent, count == 0)]
        self.above = np.arange(-1, len(self.node) - 1)
        is_first = self.place == 0
        self.above[is_first] = self.last[parent[self.node[is_first]]]
        self.above[0] = 0

    def depths(self) -> npt.NDArray[np.int32]:
        depth, above = np.minimum(np.arange(len(self.above)), 1).astype(np.int32), self.above.copy()
        while above.any():
            depth += depth[above]
            above = above[above]
        return depth


def _merged(
    entry: _Entries, what: npt.NDArray[np.int64], kinds: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Entries of which none is equal to another under the same one: the first of each, parents first, and for each
    entry the index of the one that stands for it. `what` is below `kinds`."""
    depth = entry.depths()
    order = np.argsort(depth, kind="stable")
    levels = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    place, kept, made = np.zeros(len(what), np.int64), [order[:1]], 1
    for begin, end in pairwise(levels[1:].tolist()):
        level = order[begin:end]
        _, first, back = np.unique(
            place[entry.above[level]] * kinds + what[level], return_index=True, return_inverse=True
        )
        place[level] = made + back
        kept.append(level[first])
        made += len(first)
    return np.concatenate(kept), place


class _Named:
    """The native frames of a recording with their names. `codes` has one for each function of each file that was met,
    with the `library` that it is in. `at_node` is for each node with a native frame the number of its address, -1 for
    others. At an address are `lengths` pairs of a code and a line to be shown: the numbers of these `pairs` are in
    `of_chain` from `first` on."""

    def __init__(self, contents: Contents, text: Callable[[int], str], add: Callable[[str], int], name: Namer) -> None:
        nodes, codes, modules = contents.tables["nodes"], contents.tables["codes"], contents.tables[TABLE]
        self._codes, self._added = codes, list[tuple[int, int, int]]()
        self._numbers: dict[tuple[int, str, str], int] = {}
        is_native = _is_native(contents)
        code_of = nodes["code"][is_native].astype(np.int64)
        distinct, back = np.unique(code_of << 32 | nodes["line"][is_native], return_inverse=True)
        # Codes of no module stand for frames that are not known.
        places: list[Sequence[tuple[int, int]]] = [((code, 0),) for code in (distinct >> 32).tolist()]
        self.at_node = np.full(len(nodes), -1)
        self.at_node[is_native] = back
        starts = modules["bias"] if "bias" in (modules.dtype.names or ()) else np.zeros(len(modules), np.uint64)
        for module, start in zip(modules[1:], starts[1:].tolist(), strict=True):
            code = int(module["code"])
            of_module = np.flatnonzero(distinct >> 32 == code)
            file = Module(text(int(module["path"])), text(int(module["identity"])), start)
            found = name(file, (distinct[of_module] & 0xFFFFFFFF).tolist())
            for place, chain in zip(of_module.tolist(), found, strict=True):
                places[place] = [(self._code(code, one, add), one.line) for one in chain]
        self.codes = self._with_added()
        self._number(places)

    def _number(self, places: Sequence[Sequence[tuple[int, int]]]) -> None:
        numbers: dict[tuple[int, int], int] = {}
        self.of_chain = np.array(
            [numbers.setdefault(pair, len(numbers)) for chain in places for pair in chain], np.int64
        )
        self.pairs = np.array([*numbers], np.int64).reshape(-1, 2)
        self.lengths = np.array([*map(len, places), 1], np.int64)  # the last is for nodes without a native frame
        self.first = np.cumsum(self.lengths) - self.lengths

    def _code(self, module: int, place: NativePlace, add: Callable[[str], int]) -> int:
        key = (module, place.function, place.file)
        if key not in self._numbers:
            self._numbers[key] = len(self._codes) + len(self._added)
            self._added.append((module, add(place.function), add(place.file) if place.file else 0))
        return self._numbers[key]

    def _with_added(self) -> Records:
        recorded = self._codes
        names = recorded.dtype.names or ()
        codes = np.zeros(
            len(recorded) + len(self._added), [(name, recorded.dtype[name]) for name in names] + [("library", "<u4")]
        )
        for name in names:
            codes[name][: len(recorded)] = recorded[name]
        codes["library"][codes["kind"] == CODE_NATIVE] = codes["file"][codes["kind"] == CODE_NATIVE]
        for number, (module, function, file) in enumerate(self._added, len(recorded)):
            codes[number] = codes[module]
            codes["function"][number], codes["first_line"][number] = function, 0
            if file:
                codes["file"][number] = file
        return codes
