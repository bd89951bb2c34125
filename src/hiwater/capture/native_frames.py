"""The native frames of a capture, which `hiwater run --native` records: left out, among Python's, or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import CODE_NATIVE, CODE_NATIVE_STACK, CODE_PYTHON
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


def without(contents: Contents) -> Contents:
    """The contents with all that native frames hold at the Python frames that called them, as if only these had been
    recorded."""
    nodes, kind = contents.tables["nodes"], _kinds(contents)
    is_native = (kind == CODE_NATIVE) | (kind == CODE_NATIVE_STACK)
    caller = _nearest(nodes["parent"], is_native)
    number = np.cumsum(~is_native) - 1
    kept = nodes[~is_native].copy()
    kept["parent"] = number[caller[kept["parent"]]]
    return _at_nodes(contents, kept, number[caller])


def _kinds(contents: Contents) -> npt.NDArray[np.uint16]:
    """For each node, the kind of its code; the root has that of Python's."""
    kinds: npt.NDArray[np.uint16] = contents.tables["codes"]["kind"][contents.tables["nodes"]["code"]]
    kinds[:1] = CODE_PYTHON
    return kinds


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
    """The contents with native frames by their names, as nodes below the Python frames that called them: those at one
    place under one caller are one. `text` has the recorded strings, `add` adds one. Of Python's frames all stay or, if
    native ones are to be shown alone, none. Where inlined functions, or outer frames, would fill memory, there are
    none."""
    named = _Named(contents, text, add, name)
    nodes, kind = contents.tables["nodes"], _kinds(contents)
    most = _MOST_FOR_EACH * len(nodes) + _MOST_ALWAYS
    chains = _Chains(named, nodes["parent"], kind == CODE_NATIVE, most)
    is_stack = kind == CODE_NATIVE_STACK
    is_left_out = kind == CODE_NATIVE
    if frames is Frames.native:
        is_left_out |= kind == CODE_PYTHON
    is_left_out |= is_stack & (nodes["parent"] == 0) & (nodes["line"] == 0)  # the root of all native frames
    is_left_out[0] = False
    above = _nearest(nodes["parent"], is_left_out)
    stacks = np.flatnonzero(is_stack & ~is_left_out)
    chain = chains.of_node[np.minimum(nodes["line"][stacks], len(nodes) - 1)]
    made = _Expanded(_nearest(nodes["parent"], is_left_out | is_stack)[stacks], chain, stacks, chains, most)

    others = np.flatnonzero(~is_left_out & ~is_stack)
    place = np.zeros(len(nodes), np.int64)
    order = np.lexsort(
        (np.concatenate((np.zeros(len(others), np.int64), made.depth)), np.concatenate((others, made.position)))
    )
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    of_made = np.append(number[len(others) :], 0)  # the last is for none
    place[others] = number[: len(others)]
    place[stacks] = np.where(made.of_stack >= 0, of_made[made.of_stack], place[made.callers])
    place = place[above]
    changed = np.concatenate((nodes[others], np.zeros(len(made.chain), nodes.dtype)))
    changed["parent"][: len(others)] = place[nodes["parent"][others]]
    changed["parent"][len(others) :] = np.where(made.above >= 0, of_made[made.above], place[made.caller])
    pair = chains.pair[made.chain]
    for column, field in enumerate(("code", "line")):
        changed[field][len(others) :] = named.pairs[pair, column]
    return _at_nodes(replace(contents, tables={**contents.tables, "codes": named.codes}), changed[order], place)


class _Chains:
    """Native frames as they are to be shown, outermost first: of each the one `above` it, 0 for none, its depth and the
    number of what it shows in `pairs` of `named`; for each node the innermost one of it and those above, 0 for none."""

    def __init__(
        self, named: _Named, parent: npt.NDArray[np.uint32], is_frame: npt.NDArray[np.bool_], most: int
    ) -> None:
        frames = np.flatnonzero(is_frame)
        number = np.zeros(len(parent), np.int64)
        number[frames] = np.arange(1, len(frames) + 1)
        of_frame = named.at_node[frames]
        count = np.concatenate(([1], named.lengths[of_frame]))
        if count.sum() > most:
            count = np.minimum(count, 1)
        entry = _Entries(np.concatenate(([0], number[parent[frames]])), count)
        what = np.full(len(entry.node), len(named.pairs))
        what[1:] = named.of_chain[named.first[of_frame[entry.node[1:] - 1]] + entry.place[1:]]
        kept, place = _merged(entry, what, len(named.pairs) + 1)
        self.above = place[entry.above[kept]]
        self.pair = what[kept]
        self.depth = entry.depths()[kept]
        self.of_node = place[entry.last][number]


class _Expanded:
    """Chains of native frames below their callers: of each of these new nodes the caller, the index of its frame in
    `chains`, its depth there, the new node above it or -1, and the position of the first stack that has it. For each
    stack its new node, or -1. Where these would be more than `most`, the outermost are left out."""

    def __init__(
        self,
        callers: npt.NDArray[np.int64],
        chain: npt.NDArray[np.int64],
        position: npt.NDArray[np.int64],
        chains: _Chains,
        most: int,
    ) -> None:
        self.callers = callers
        many = len(chains.above)
        wanted, depth = callers * many + chain, chains.depth[chain]
        keys, positions = wanted[:0], position[:0]
        levels: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        by_depth = np.argsort(depth, kind="stable")
        ends = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
        made = 0
        for begin, end in reversed([*pairwise(ends.tolist())][1:]):
            of_level = by_depth[begin:end]
            below = chains.above[keys % many]
            keys = np.concatenate((wanted[of_level], keys - keys % many + below))
            positions = np.concatenate((position[of_level], positions))
            order = np.lexsort((positions, keys))
            keys, positions = keys[order], positions[order]
            is_first = np.concatenate(([True], keys[1:] != keys[:-1]))[: len(keys)]
            keys, positions = keys[is_first], positions[is_first]
            levels.append((keys, positions))
            made += len(keys)
            if made > most:
                break
        self._number(levels[::-1], wanted, chains)

    def _number(
        self,
        levels: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
        wanted: npt.NDArray[np.int64],
        chains: _Chains,
    ) -> None:
        many = len(chains.above)
        none = np.empty(0, np.int64)
        keys = np.concatenate([none, *(keys for keys, _ in levels)])
        self.position = np.concatenate([none, *(positions for _, positions in levels)])
        self.caller, self.chain = np.divmod(keys, many)
        self.depth = chains.depth[self.chain]
        order = np.argsort(keys)

        def find(key: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            at = np.minimum(np.searchsorted(keys, key, sorter=order), max(0, len(keys) - 1))
            found = order[at] if len(keys) else np.zeros(len(key), np.int64)
            is_found = keys[found] == key if len(keys) else np.zeros(len(key), bool)
            return np.where(is_found, found, -1)

        self.above = find(self.caller * many + chains.above[self.chain])
        self.of_stack = find(wanted)


class _Entries:
    """What is to be shown instead of frames: for each as many entries as `count` says, below each other; one above all.
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
        is_native = _kinds(contents) == CODE_NATIVE
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
