"""The native frames of a capture, which `hiwater run --native` records: left out, among Python's, or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import CODE_NATIVE, CODE_PYTHON
from hiwater.capture.reader import Contents
from hiwater.capture.references import Records

TABLE = "modules"
GENERATED = "[generated code]"
_WITH_NODES = ("accounts", "markers", "large_blocks")


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
    caller = np.where(is_native, nodes["parent"], np.arange(len(nodes)))
    while not np.array_equal(further := caller[caller], caller):
        caller = further
    number = np.cumsum(~is_native) - 1
    kept = nodes[~is_native].copy()
    kept["parent"] = number[caller[kept["parent"]]]
    return _at_nodes(contents, kept, number[caller])


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
    recorded strings, `add` adds one. Of Python's frames all stay or, if native ones are to be shown alone, none."""
    named = _Named(contents, text, add, name)
    nodes = contents.tables["nodes"]
    is_hidden = np.zeros(len(nodes), bool)
    if frames is Frames.native:
        is_hidden = (named.codes["kind"] == CODE_PYTHON)[nodes["code"]]
        is_hidden[:1] = False
    parents, codes, lines = nodes["parent"].tolist(), nodes["code"].tolist(), nodes["line"].tolist()
    place, made, known = [0] * len(nodes), list[tuple[int, int, int, int]](), dict[tuple[int, int, int], int]()
    for node, (hidden, at) in enumerate(zip(is_hidden.tolist(), named.at_node.tolist(), strict=True)):
        above = place[parents[node]] if node else 0
        if at < 0 and not hidden:
            place[node] = len(made)
            made.append((node, above, codes[node], lines[node]))
            continue
        for code, line in named.places[at] if at >= 0 else ():
            number = known.setdefault((above, code, line), len(made))
            if number == len(made):
                made.append((node, above, code, line))
            above = number
        place[node] = above
    origin, parent, code, line = (np.array(column, np.int64) for column in zip(*made, strict=True))
    kept = nodes[origin].copy()
    kept["parent"], kept["code"], kept["line"] = parent, code, line
    changed = replace(contents, tables={**contents.tables, "codes": named.codes})
    return _at_nodes(changed, kept, np.array(place, np.int64))


class _Named:
    """The native frames of a recording with their names. `codes` has one for each function of each file that was met,
    with the `library` that it is in; `at_node` is for each node with a native frame the index in `places`, which has
    the codes and lines to be shown there, and -1 for other nodes."""

    def __init__(self, contents: Contents, text: Callable[[int], str], add: Callable[[str], int], name: Namer) -> None:
        nodes, codes, modules = contents.tables["nodes"], contents.tables["codes"], contents.tables[TABLE]
        self._codes, self._added = codes, list[tuple[int, int, int]]()
        self._numbers: dict[tuple[int, str, str], int] = {}
        is_native = _is_native(contents)
        code_of = nodes["code"][is_native].astype(np.int64)
        distinct, back = np.unique(code_of << 32 | nodes["line"][is_native], return_inverse=True)
        # Codes of no module stand for frames that are not known.
        self.places: list[Sequence[tuple[int, int]]] = [((code, 0),) for code in (distinct >> 32).tolist()]
        self.at_node = np.full(len(nodes), -1)
        self.at_node[is_native] = back
        starts = modules["bias"] if "bias" in (modules.dtype.names or ()) else np.zeros(len(modules), np.uint64)
        for module, start in zip(modules[1:], starts[1:].tolist(), strict=True):
            code = int(module["code"])
            of_module = np.flatnonzero(distinct >> 32 == code)
            file = Module(text(int(module["path"])), text(int(module["identity"])), start)
            found = name(file, (distinct[of_module] & 0xFFFFFFFF).tolist())
            for place, chain in zip(of_module.tolist(), found, strict=True):
                self.places[place] = [(self._code(code, one, add), one.line) for one in chain]
        self.codes = self._with_added()

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
