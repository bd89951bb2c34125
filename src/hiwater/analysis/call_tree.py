"""The call paths of a capture, with frames told apart as finely as asked: by line, function, file, module or thread.

node    a call path of the capture; node 0 is nothing, and every parent has a smaller number than its children
key     what a frame is at the chosen fineness: equal keys are one thing to the reader
place   the node that stands for a node: thread roots stand under nothing, and at the coarse finenesses (file, module,
        thread) a frame whose caller has the same key is one with it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

import numpy as np
import numpy.typing as npt

from hiwater.analysis.naming import module_of
from hiwater.capture.paths import Frame, Ints
from hiwater.capture.tables import Tables


class Grouping(StrEnum):
    """How finely frames are told apart."""

    stack = "stack"
    function = "function"
    line = "line"
    file = "file"
    module = "module"
    thread = "thread"


IMPORT_SYSTEM = "<frozen importlib."
COARSE = (Grouping.file, Grouping.module, Grouping.thread)


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """`parent` and `key` have an entry for each path, `frames[key]` is what a key looks like, and `place` has an entry for each node of
    the capture: the path that it is. Entries that others stand for mean nothing; a parent has a smaller number than its children."""

    grouping: Grouping
    parent: Ints
    key: Ints
    place: Ints
    frames: Sequence[Frame]

    @property
    def stands(self) -> npt.NDArray[np.bool_]:
        """For each entry, whether it is a path (or 0), and not one that another stands for."""
        stands = np.zeros(len(self.parent), bool)
        stands[self.place] = True
        return stands


def build_call_tree(tables: Tables, grouping: Grouping = Grouping.stack, *, hide_imports: bool = False) -> CallTree:
    """The call paths of a capture at this fineness.

    `hide_imports` gives what the import system holds to whoever asked for the import: its six frames between any two
    modules say nothing. Views for people want that; data stays as recorded.
    """
    nodes = tables["nodes"]
    parent = nodes["parent"].astype(np.int64)
    parent[:1] = 0
    if grouping == Grouping.thread:
        key, frames = _thread_keys(tables, parent)
    else:
        key, frames = _frame_keys(tables, grouping)
    own = np.arange(len(parent))
    place = own if grouping == Grouping.thread else np.where(tables.paths.is_thread, 0, own)
    if hide_imports and grouping != Grouping.thread:
        place = follow(np.where(_is_import_system(tables), place[parent], place))
    if grouping in COARSE:
        above = place[parent]
        place = follow(np.where((place == own) & (above != 0) & (key == key[above]), above, place))
    return CallTree(grouping, place[parent], key, place, frames)


def _is_import_system(tables: Tables) -> npt.NDArray[np.bool_]:
    """For each node, whether it is a frame of the import system's."""
    codes = tables["codes"]
    files = [tables.string(file).startswith(IMPORT_SYSTEM) for file in codes["file"].tolist()]
    frames: npt.NDArray[np.bool_] = np.array(files, bool)[tables["nodes"]["code"]]
    return frames


def follow(target: Ints) -> Ints:
    """Where each entry ends when `target` is followed until it stays. Doubling: log2(longest way) passes."""
    while True:
        further = target[target]
        if np.array_equal(further, target):
            return target
        target = further


def _frame_keys(tables: Tables, grouping: Grouping) -> tuple[Ints, Sequence[Frame]]:
    """Keys by what codes and lines say, not by which code object: a function compiled twice is one function."""
    codes, nodes = tables["codes"], tables["nodes"]
    code = nodes["code"].astype(np.int64)
    file_names, file_key = _by_text(tables, codes["file"])
    if grouping == Grouping.module:
        names = [module_of(name, tables.facts.get("cwd", "")) for name in file_names]
        distinct, again = np.unique(np.array(names, dtype=object), return_inverse=True)
        return again[file_key][code], [Frame(name or "[native]", "", 0) for name in distinct.tolist()]
    if grouping == Grouping.file:
        return file_key[code], [Frame(name or "[native]", "", 0) for name in file_names]
    function_names, function_key = _by_text(tables, codes["function"])
    pair = function_key * len(file_names) + file_key
    if grouping == Grouping.function:
        distinct, key = np.unique(pair, return_inverse=True)
        lines = np.zeros(len(distinct), np.int64)
        lines[key] = codes["first_line"]
        return key[code], FrameNames(distinct, lines, function_names, file_names)
    pairs, pair_key = np.unique(pair, return_inverse=True)
    distinct, key = np.unique((pair_key[code] << 32) | nodes["line"], return_inverse=True)
    return key, FrameNames(pairs[distinct >> 32], distinct & 0xFFFFFFFF, function_names, file_names)


def _thread_keys(tables: Tables, parent: Ints) -> tuple[Ints, Sequence[Frame]]:
    nodes, codes = tables["nodes"], tables["codes"]
    root = follow(np.where(parent == 0, np.arange(len(parent)), parent))
    names, key_of_code = _by_text(tables, codes["function"])
    return key_of_code[nodes["code"].astype(np.int64)][root], [Frame(name or "[no thread]", "", 0) for name in names]


def _by_text(tables: Tables, strings: npt.NDArray[np.uint32]) -> tuple[list[str], Ints]:
    """The distinct texts of these strings and, for each entry, which of them it is."""
    distinct, back = np.unique(strings, return_inverse=True)
    numbers: dict[str, int] = {}
    numbered = np.array([numbers.setdefault(tables.string(s), len(numbers)) for s in distinct.tolist()], np.int64)
    return list(numbers), numbered[back] if len(numbered) else np.zeros(0, np.int64)


class FrameNames(Sequence[Frame]):
    """Frames by key, made when looked at."""

    def __init__(self, pair: Ints, line: Ints, functions: list[str], files: list[str]) -> None:
        self._pair, self._line = pair, line
        self._functions, self._files = functions, files

    def __len__(self) -> int:
        return len(self._pair)

    @overload
    def __getitem__(self, key: int) -> Frame: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Frame]: ...
    def __getitem__(self, key: int | slice) -> Frame | Sequence[Frame]:
        if isinstance(key, slice):
            return [self[number] for number in range(len(self))[key]]
        function, file = divmod(int(self._pair[key]), max(1, len(self._files)))
        return Frame(self._functions[function], self._files[file], int(self._line[key]))
