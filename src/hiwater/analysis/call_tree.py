"""The call paths of a capture, with frames grouped by line, function, file, module or thread.

- node: a call path of the capture; node 0 is none, and every parent has a smaller number than its children
- key: the group of a frame: frames with equal keys are shown as one
- place: the node that represents a node: roots of threads have no parent, and in the coarse groupings (file, module,
  thread, task) a frame and its caller with the same key are one; by function, so are a comprehension and the function
  around it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

import numpy as np
import numpy.typing as npt

from hiwater._os.ownership import IMPORTS
from hiwater.analysis.naming import function_of, module_of
from hiwater.capture.paths import Frame, Ints
from hiwater.capture.tables import Tables


class Grouping(StrEnum):
    """By what frames are grouped."""

    stack = "stack"
    function = "function"
    line = "line"
    file = "file"
    module = "module"
    thread = "thread"
    task = "task"


_ORIGINS = (Grouping.thread, Grouping.task)  # what a whole call path belongs to
COARSE = (Grouping.file, Grouping.module, *_ORIGINS)


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """The call tree as int64 arrays with one element for each node of the capture.

    `parent` is the node of the caller, which is smaller than the node, and `key` an index in `frames`. `place` is the
    node that represents this node; entries of `parent` and `key` are valid only for such nodes. `functions` has for
    each of `frames` its function at the function's first line.
    """

    grouping: Grouping
    parent: Ints
    key: Ints
    place: Ints
    frames: Sequence[Frame]
    functions: Sequence[Frame]

    @property
    def stands(self) -> npt.NDArray[np.bool_]:
        """For each node, whether it represents itself (also node 0): a bool array."""
        stands = np.zeros(len(self.parent), bool)
        stands[self.place] = True
        return stands


def build_call_tree(tables: Tables, grouping: Grouping = Grouping.stack, *, hide_imports: bool = False) -> CallTree:
    """The call paths of a capture in this grouping.

    `hide_imports` leaves out the six frames of the import system between any two modules, and adds their bytes to the
    frame with the import statement. Reports for people use it; exported data has all frames.
    """
    parent = tables.paths.parent
    functions: Sequence[Frame] = ()
    if grouping == Grouping.thread:
        key, frames = _thread_keys(tables, parent)
    elif grouping == Grouping.task:
        parent = np.where(_is_loop(tables)[parent], 0, parent)
        key, frames = _task_keys(tables, parent)
    else:
        key, frames, functions = _frame_keys(tables, grouping)
    own = np.arange(len(parent))
    place = own if grouping in _ORIGINS else np.where(tables.paths.is_thread, 0, own)
    if hide_imports and grouping not in _ORIGINS:
        place = follow(np.where(_is_import_system(tables), place[parent], place))
    if grouping in COARSE:
        above = place[parent]
        place = follow(np.where((place == own) & (above != 0) & (key == key[above]), above, place))
    if grouping == Grouping.function:
        place = follow(np.where((place == own) & _is_part(tables) & (key == key[parent]), parent, place))
    return CallTree(grouping, place[parent], key, place, frames, functions or frames)


def _is_part(tables: Tables) -> npt.NDArray[np.bool_]:
    """For each node, whether it is the frame of a comprehension, which is part of the function around it."""
    around, _ = functions_of_codes(tables)
    codes, code = tables["codes"], tables["nodes"]["code"]
    is_part: npt.NDArray[np.bool_] = (codes["function"] != codes["function"][around])[code]
    return is_part


def _is_import_system(tables: Tables) -> npt.NDArray[np.bool_]:
    """For each node, whether it is a frame of the import system."""
    frames: npt.NDArray[np.bool_] = (tables.code_owner == IMPORTS)[tables["nodes"]["code"]]
    return frames


def follow(target: Ints) -> Ints:
    """For each index, the end of the chain index → `target[index]` → …; log2(longest chain) passes."""
    while True:
        further = target[target]
        if np.array_equal(further, target):
            return target
        target = further


def _frame_keys(tables: Tables, grouping: Grouping) -> tuple[Ints, Sequence[Frame], Sequence[Frame]]:
    """Keys by the names and lines of code objects, not by their identity: a function that was compiled twice is one
    function."""
    codes, nodes = tables["codes"], tables["nodes"]
    code = nodes["code"].astype(np.int64)
    file_names, file_key = tables.files
    if grouping == Grouping.module:
        libraries, library_key = tables.libraries
        names = [module_of(name, tables.facts.get("cwd", "")) for name in libraries]
        distinct, again = np.unique(np.array(names, dtype=object), return_inverse=True)
        return again[library_key][code], [Frame(name or "[native]", "", 0) for name in distinct.tolist()], ()
    if grouping == Grouping.file:
        return file_key[code], [Frame(name or "[native]", "", 0) for name in file_names], ()
    function_names, function_key = tables.functions
    pair = function_key * len(file_names) + file_key
    around, number = functions_of_codes(tables)
    of_function, key_of_code = around[np.unique(number, return_index=True)[1]], number
    functions = FrameNames(
        pair[of_function], codes["first_line"][of_function].astype(np.int64), function_names, file_names
    )
    if grouping == Grouping.function:
        return key_of_code[code], functions, functions
    pairs, pair_key = np.unique(pair, return_inverse=True)
    distinct, first, key = np.unique((pair_key[code] << 32) | nodes["line"], return_index=True, return_inverse=True)
    frames = FrameNames(pairs[distinct >> 32], distinct & 0xFFFFFFFF, function_names, file_names)
    return key, frames, functions.chosen(key_of_code[code[first]])


def _thread_keys(tables: Tables, parent: Ints) -> tuple[Ints, Sequence[Frame]]:
    root = follow(np.where(parent == 0, np.arange(len(parent)), parent))
    names, key_of_code = tables.functions
    return key_of_code[tables["nodes"]["code"].astype(np.int64)][root], [
        Frame(name or "[no thread]", "", 0) for name in names
    ]


def _task_keys(tables: Tables, parent: Ints) -> tuple[Ints, Sequence[Frame]]:
    """Keys by a task's coroutine, the outermost frame where `parent` ends at asyncio's event loop. Callbacks of the
    loop are as tasks."""
    root = follow(np.where(parent == 0, np.arange(len(parent)), parent))
    key, frames, _ = _frame_keys(tables, Grouping.function)
    is_task = _is_loop(tables)[tables["nodes"]["parent"]]
    return np.where(is_task[root], key[root], len(frames)), [*frames, Frame("[no task]", "", 0)]


def _is_loop(tables: Tables) -> npt.NDArray[np.bool_]:
    """For each node, whether it is the frame of asyncio's event loop that calls tasks and callbacks."""
    codes = tables["codes"]
    named = zip(map(tables.string, codes["function"].tolist()), map(tables.string, codes["file"].tolist()), strict=True)
    loops = [function == "Handle._run" and file.endswith("asyncio/events.py") for function, file in named]
    frames: npt.NDArray[np.bool_] = np.array(loops, bool)[tables["nodes"]["code"]]
    return frames


class FrameNames(Sequence[Frame]):
    """A sequence of frames by key, each made at its access."""

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

    def chosen(self, keys: Ints) -> FrameNames:
        """A sequence of these of the frames."""
        return FrameNames(self._pair[keys], self._line[keys], self._functions, self._files)


def functions_of_codes(tables: Tables) -> tuple[Ints, Ints]:
    """For each code object the one that stands for its function, and a number that code objects of one function share.

    Functions of one file may have the same name: all lambdas have. They are told apart by their first lines. A function
    that was compiled twice is one function. A comprehension is part of the function that called it, although it has a
    code object of its own up to Python 3.11.
    """
    codes = tables["codes"]
    (names, name), (_, file) = tables.functions, tables.files
    around = _functions_around(tables, names, name, file)
    wheres, where = np.unique(file[around] << 32 | codes["first_line"][around], return_inverse=True)
    _, first, number = np.unique(name[around] * max(1, len(wheres)) + where, return_index=True, return_inverse=True)
    return around[first][number], number


def _functions_around(tables: Tables, names: list[str], name: Ints, file: Ints) -> Ints:
    """For each code object itself; for a comprehension the code object that called it, if that is the function
    around it."""
    nodes = tables["nodes"]
    around = np.arange(len(name))
    outer = [function_of(text) for text in names]
    is_part = np.array([text != around_it for text, around_it in zip(names, outer, strict=True)], bool)[name]
    code = nodes["code"].astype(np.int64)
    parts = np.flatnonzero(is_part[code] & (nodes["parent"] != 0))
    callers = code[nodes["parent"][parts]]
    _, first = np.unique(code[parts] * len(name) + callers, return_index=True)
    for place in np.sort(first).tolist():  # callers first: their nodes have smaller numbers
        part, caller = int(code[parts[place]]), int(callers[place])
        if outer[name[part]] == outer[name[caller]] and file[part] == file[caller]:
            around[part] = around[caller]
    return around
