"""The native frames of a capture, which `hiwater run --native` records: left out, among Python's, or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import CODE_NATIVE, CODE_PYTHON
from hiwater.capture.reader import Contents
from hiwater.capture.references import Records

TABLE = "modules"
_WITH_NODES = ("accounts", "markers", "large_blocks")


class Frames(StrEnum):
    """Which frames a report shows."""

    python = "python"
    mixed = "mixed"
    native = "native"


@dataclass(frozen=True, slots=True)
class Module:
    """A file with native code: its path in the recorded process, and what identifies it: its build-id in hexadecimal,
    or "headers:" and a sum of its headers."""

    path: str
    identity: str


Namer = Callable[[Module, Sequence[int]], Sequence[str | None]]
"""The names of the functions that contain these return addresses, which are counted from the module's start; None for
one that is not to be shown."""


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
    """The contents with native frames by their names: those of one function under one caller are one. `text` has the
    recorded strings, `add` adds one. Of Python's frames all stay or, if native ones are to be shown alone, none."""
    codes, code_of = _named_codes(contents, text, add, name)
    nodes, is_native = contents.tables["nodes"], _is_native(contents)
    is_python = (codes["kind"] == CODE_PYTHON)[nodes["code"]]
    is_hidden = is_python if frames is Frames.native else np.zeros(len(nodes), bool)
    is_hidden[:1] = False
    parents, lines = nodes["parent"].tolist(), np.where(is_native, 0, nodes["line"]).tolist()
    place, first, known = [0] * len(nodes), list[int](), dict[tuple[int, int, int], int]()
    for node, (code, hidden, native) in enumerate(
        zip(code_of.tolist(), is_hidden.tolist(), is_native.tolist(), strict=True)
    ):
        above = place[parents[node]] if node else 0
        if hidden or code < 0:
            place[node] = above
            continue
        key = (above, code, lines[node])
        number = known.get(key) if native else None
        if number is None:
            number = known[key] = len(first)
            first.append(node)
        place[node] = number
    kept = nodes[first].copy()
    kept["parent"] = np.array(place, np.int64)[kept["parent"]]
    kept["code"], kept["line"] = code_of[first], np.array(lines, np.int64)[first]
    changed = replace(contents, tables={**contents.tables, "codes": codes})
    return _at_nodes(changed, kept, np.array(place, np.int64))


def _named_codes(
    contents: Contents, text: Callable[[int], str], add: Callable[[str], int], name: Namer
) -> tuple[Records, npt.NDArray[np.int64]]:
    """The codes with one for each native function that was met, and for each node its code; -1 for a frame that is not
    to be shown."""
    nodes, codes, modules = contents.tables["nodes"], contents.tables["codes"], contents.tables[TABLE]
    code_of = nodes["code"].astype(np.int64)
    is_native = _is_native(contents)
    is_native &= np.isin(code_of, modules["code"][1:])  # others stand for frames that are not known
    places, back = np.unique(code_of[is_native] << 32 | nodes["line"][is_native], return_inverse=True)
    added: list[Any] = []
    numbers: dict[tuple[int, str], int] = {}
    code_of_place = np.empty(len(places), np.int64)
    for module in modules[1:]:
        of_module = np.flatnonzero(places >> 32 == int(module["code"]))
        file = Module(text(int(module["path"])), text(int(module["identity"])))
        names = name(file, (places[of_module] & 0xFFFFFFFF).tolist())
        for place, function in zip(of_module.tolist(), names, strict=True):
            if function is None:
                code_of_place[place] = -1
                continue
            key = (int(module["code"]), function)
            if key not in numbers:
                numbers[key] = len(codes) + len(added)
                record = codes[key[0]].copy()
                record["function"], record["first_line"] = add(function), 0
                added.append(record)
            code_of_place[place] = numbers[key]
    code_of[is_native] = code_of_place[back]
    return np.concatenate([codes, np.array(added, codes.dtype)]) if added else codes, code_of
