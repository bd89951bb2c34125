"""The decoded tables of a capture: records by name, strings, facts, cells of notebooks, accounts and call paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater._os import ownership
from hiwater.capture import bounds, cells, native_frames, sent_code
from hiwater.capture.format import CODE_NATIVE, CODE_PYTHON
from hiwater.capture.paths import Ints, Paths, numbered, thread_roots
from hiwater.capture.reader import Contents
from hiwater.capture.references import Records


class Strings:
    """The interned strings of a capture, as the recorder saw them. Bytes that are not UTF-8 come as U+FFFD."""

    def __init__(self, contents: Contents, added: Sequence[str] = ()) -> None:
        """`added` are at hand, and not in the contents."""
        places = contents.tables["strings"]
        self._offset, self._length = places["offset"], places["length"]
        self._content = bytes(contents.tables["string_bytes"])
        self._shown: dict[int, str] = {}
        self._added = [*added]
        self._numbers_of_added: dict[str, int] = {}
        self.names: dict[str, str] = {}
        """What is shown in the place of a string: the names of a notebook's cells for their files."""

    def add(self, text: str) -> int:
        """Return the number of a string that the capture did not have."""
        if text not in self._numbers_of_added:
            self._numbers_of_added[text] = len(self._offset) + len(self._added)
            self._added.append(text)
        return self._numbers_of_added[text]

    def __getitem__(self, number: int) -> str:
        if number >= len(self._offset):
            added = number - len(self._offset)
            return self._added[added] if added < len(self._added) else ""
        return self._decode(number, self._length.item(number))

    def _decode(self, number: int, length: int) -> str:
        begin = self._offset.item(number)
        return self._content[begin : begin + length].decode("utf-8", "replace")

    def shown(self, number: int) -> str:
        """One string as a name; "" for 0. The file of a notebook's cell is that cell's name. Of names that are too
        long for one, the beginning."""
        name = self._shown.get(number)
        if name is None:  # once for each, however many records name it
            is_long = number < len(self._length) and self._length.item(number) > bounds.LONGEST_NAME_BYTES
            text = f"{self._decode(number, bounds.LONGEST_NAME_BYTES)}…" if is_long else self[number]
            name = self._shown[number] = self.names.get(text, text)
        return name


class Tables:
    """What the functions that interpret a capture read. `tables[name]` is a structured array of records, read-only;
    the names of tables and fields are those of `native/capture/format.h`. `is_alive` says that the process still
    writes the capture."""

    def __init__(
        self,
        contents: Contents,
        *,
        is_alive: bool = False,
        strings: Sequence[str] = (),
        facts: Iterable[tuple[str, str]] = (),
        frames: native_frames.Frames = native_frames.Frames.python,
        name: native_frames.Namer | None = None,
    ) -> None:
        """`strings` and `facts` are at hand, and not in the contents. `frames` says which frames of a recording with
        native ones stacks have, `name` their names."""
        self.is_alive = is_alive
        self.also_own: Sequence[str] = ()
        """Installed packages whose code counts as the user's own, besides what the capture says. Set before anything
        is asked."""
        self.untouched: dict[int, int] | None = None
        """For each node, the bytes that were never touched, where large blocks do not tell it."""
        self._strings = Strings(contents, strings)
        self._recorded = contents
        self.has_native_frames = native_frames.has_native_frames(contents)
        """Whether native frames were recorded."""
        if self.has_native_frames and name is not None:
            contents = native_frames.shown(contents, frames, self._strings.shown, self._strings.add, name)
        elif self.has_native_frames:
            contents = native_frames.without(contents)
        recorded = contents.tables["facts"]
        texts = [(self._strings[int(fact["key"])], self._strings[int(fact["value"])]) for fact in recorded]
        texts += facts
        self.cells = cells.read(texts)
        """The cells of a notebook, by the file names of their code."""
        self._strings.names = {file: cell.name for file, cell in self.cells.items()}
        self.facts = {key: value for key, value in texts if not cells.is_cell(key) and _is_of_its_kind(key, value)}
        """What the recorder was told about the program, as text."""
        recorded_cell = self.facts.get(cells.RECORDED)
        is_reduced = self.cells and recorded_cell
        self.contents = _without_kernel(contents, self._strings, recorded_cell) if is_reduced else contents
        if sent_code.FACT in self.facts:
            self.contents = _with_files(self.contents, self._strings, self.facts[sent_code.FACT])
        accounts = self["accounts"]
        self.account_node: Ints = accounts["node"].astype(np.int64)
        """For each account, its node."""
        self.account_kind: Ints = accounts["kind"].astype(np.int64)
        """For each account, the number of its kind: the index in `KINDS`."""
        self.account_is_sampled: npt.NDArray[np.bool_] = accounts["sampled"] != 0
        """For each account, whether it is of sampled blocks."""
        snapshots = self.get("live_snapshots")
        has_snapshots = snapshots is not None and len(snapshots) > 0
        self.has_several_accounts = bool(self.header["sample_bytes"]) or has_snapshots or self.has_native_frames
        """Whether a call path may have several accounts of one kind."""

    def __repr__(self) -> str:
        return (
            f"<Tables of {str(self.path)!r}: {len(self['nodes']):,} rows in nodes, {len(self['accounts']):,} in"
            " accounts>"
        )

    def showing(self, frames: native_frames.Frames, name: native_frames.Namer) -> Tables:
        """The same recording with stacks of these frames."""
        return Tables(self._recorded, is_alive=self.is_alive, frames=frames, name=name)

    def __getitem__(self, name: str) -> Records:
        return self.contents.tables[name]

    def get(self, name: str) -> Records | None:
        """A table that the capture may lack."""
        return self.contents.tables.get(name)

    @cached_property
    def code_owner(self) -> Ints:
        """For each code, whose it is: `ownership.OWN` and the like. The engine has written it; other captures have
        it by the names of files."""
        codes = self["codes"]
        if "owner" not in (codes.dtype.names or ()):
            return self._owners_by(ownership.rules())
        owners = codes["owner"].astype(np.int64)
        if not self.also_own:
            return owners
        return np.where(self._owners_by(ownership.additions(self.also_own)) == ownership.OWN, ownership.OWN, owners)

    def _owners_by(self, rules: Sequence[ownership.Rule]) -> Ints:
        files, number = self.files
        owners = np.array(ownership.owners(files, rules), np.int64)
        return np.where(self["codes"]["kind"] == CODE_PYTHON, owners[number], ownership.LIBRARY)

    @cached_property
    def own_files(self) -> set[str]:
        """The files with code of the user's own."""
        files, number = self.files
        is_own = np.zeros(len(files), bool)
        is_own[number[self.is_own_code]] = True
        return {files[of] for of in np.flatnonzero(is_own).tolist()}

    @cached_property
    def files(self) -> tuple[list[str], Ints]:
        """The distinct files of codes, and for each code the index of its file."""
        return self._texts(self["codes"]["file"])

    @cached_property
    def libraries(self) -> tuple[list[str], Ints]:
        """The same of what code belongs to: that of native code is the library, whatever file its source is in."""
        codes = self["codes"]
        if "library" not in (codes.dtype.names or ()):
            return self.files
        return self._texts(np.where(codes["library"] != 0, codes["library"], codes["file"]))

    @cached_property
    def library_of_native(self) -> dict[tuple[str, str], str]:
        """The libraries of the native functions that stacks show, by the name of the function and its file."""
        codes = self["codes"][self["codes"]["kind"] == CODE_NATIVE]
        if "library" not in (codes.dtype.names or ()):
            return {}
        texts = (map(self.string, codes[name].tolist()) for name in ("function", "file", "library"))
        return {(function, file): library for function, file, library in zip(*texts, strict=True)}

    @cached_property
    def python_files(self) -> set[str]:
        """The files of Python code."""
        files, number = self.files
        return {files[of] for of in np.unique(number[self["codes"]["kind"] == CODE_PYTHON]).tolist()} - {""}

    @cached_property
    def functions(self) -> tuple[list[str], Ints]:
        """The distinct names of functions, and for each code the index of its function's name."""
        return self._texts(self["codes"]["function"])

    def _texts(self, number: npt.NDArray[np.uint32]) -> tuple[list[str], Ints]:
        """The distinct texts of these strings, and for each the index of its text."""
        strings, back = np.unique(number, return_inverse=True)
        texts, index = numbered(map(self.string, strings.tolist()))
        return texts, index[back]

    @cached_property
    def is_own_code(self) -> npt.NDArray[np.bool_]:
        """For each code, whether it is the user's own."""
        return np.isin(self.code_owner, (ownership.OWN, ownership.RUN))

    @property
    def path(self) -> Path:
        return self.contents.path

    @property
    def header(self) -> dict[str, Any]:
        return self.contents.header

    def string(self, number: int) -> str:
        """One string as a name; "" for 0. The file of a notebook's cell is that cell's name."""
        return self._strings.shown(number)

    def text(self, number: int) -> str:
        """One string, however long."""
        return self._strings[number]

    def number(self, fact: str) -> int | None:
        """A fact that is a number; None where it is missing or no number."""
        return whole_number(self.facts.get(fact, ""))

    @cached_property
    def paths(self) -> Paths:
        """The call paths, each made when it is looked at. They do not refer to the tables, which are let go as soon
        as nobody reads them."""
        return Paths(self["nodes"], self["codes"], self._strings.shown)


def known(value: Any) -> int | None:
    """A figure of a table; None below zero, which stands for one that is not known."""
    return int(value) if value >= 0 else None


def _is_of_its_kind(fact: str, value: str) -> bool:
    """Whether a fact is what `bounds.FACTS` says. What JSON holds is judged where it is read."""
    kind = bounds.FACTS.get(fact)
    if kind == "number":
        return whole_number(value) is not None
    return kind not in ("path", "name") or len(value) <= bounds.LONGEST_NAME_BYTES


def whole_number(text: str) -> int | None:
    """The number that a text is; None for other texts, and for numbers beyond any figure."""
    number = int(text) if text.isdecimal() and len(text) < 20 else bounds.LARGEST_FIGURE + 1
    return number if number <= bounds.LARGEST_FIGURE else None


def _without_kernel(contents: Contents, strings: Strings, recorded_cell: str | None) -> Contents:
    """The contents without the frames of the notebook's kernel."""
    nodes, codes = contents.tables["nodes"], contents.tables["codes"]
    is_cell = np.array([strings[int(number)] == recorded_cell for number in codes["file"]], bool)
    changed = cells.without_kernel(nodes, is_cell, thread_roots(nodes, codes))
    return replace(contents, tables={**contents.tables, "nodes": changed})


def _with_files(contents: Contents, strings: Strings, fact: str) -> Contents:
    """The contents with the files of the code that another process sent."""
    codes = contents.tables["codes"].copy()
    columns = (codes[name].tolist() for name in ("file", "function", "first_line"))
    files = sent_code.read(fact)
    for row, (file, function, line) in enumerate(zip(*columns, strict=True)):
        if strings[file] == ownership.SENT and (found := files.get((strings[function], line))):
            codes["file"][row] = strings.add(found)
    return replace(contents, tables={**contents.tables, "codes": codes})
