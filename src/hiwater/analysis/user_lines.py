"""The answer that every report leads with: which lines of the user's own code hold memory, what imports hold, and what
was never touched.

Each byte is in one row. A call path belongs to its innermost line of the user's own code; the package that is run
counts as that where no other code of the user's is above it. Below that line, it belongs to imports if the import
system is on the path; a path without a line of the user's code belongs to other code, at its innermost frame, unless
the engine saw where a thread waited for it. Memory that no residency snapshot ever saw touched is not in RAM, and is
listed apart under the same lines. Where a library mapped it, for an allocator of its own, the line did not choose its
size: it belongs to other code, at the library.

Whose code it is stands in the capture: this module only sums. So does `LineRanking` in native/session/top_line.cpp,
which finds the headline for the lines at the end of `hiwater run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hiwater._os.headline import BEFORE
from hiwater._os.ownership import IMPORTS, LIBRARY, OWN, RUN
from hiwater.analysis.call_tree import follow
from hiwater.analysis.naming import function_of, mapping_library, module_of
from hiwater.capture.format import CODE_LABEL, CODE_PYTHON, CODE_WAIT, WAITED_FOR
from hiwater.capture.paths import Frame, Ints, numbered, sum_at
from hiwater.capture.snapshot import Holdings
from hiwater.capture.tables import Tables
from hiwater.capture.untouched import never_touched, untouched_of

LEADS_ABOVE = 4
"""What is listed apart leads where it is more than this many times what it is compared with: then nothing else is
worth a change."""

WORTH_LEADING = 1 << 20
"""Bytes below which code that no line of the user's called never leads: the interpreter itself holds as much."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater._os.headline import TopLine

Bools = npt.NDArray[np.bool_]


class Group(StrEnum):
    """Where a row of the ranking belongs."""

    line = "line"
    """A line of the user's own code, and all that it called."""
    waited = "waited"
    """The same, where most of it is of code that no line of the user's called, such as the tasks of a pool, and for
    which a thread waited at the line."""
    imports = "import"
    """A line that imported something, and all that the import allocated and still holds."""
    other = "other"
    """Code that no line of the user's own code called."""

    @property
    def is_own_line(self) -> bool:
        """Whether the row is a line of the user's own code, whoever allocated what it holds."""
        return self in (Group.line, Group.waited)


@dataclass(frozen=True, slots=True)
class UserLine:
    """A line of source, and what it and everything it called holds. `bytes` are without the `untouched_bytes`.

    `library` is the package that holds most of it, "" where none does; `library_bytes` is what that package holds.
    """

    group: Group
    frame: Frame
    bytes: int
    blocks: int
    untouched_bytes: int
    standard_error_bytes: int
    library: str
    library_bytes: int

    @property
    def before(self) -> str:
        """What stands before its place in a list of the user's lines."""
        return BEFORE[self.group] if self.group == Group.waited else ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """All rows, most bytes first within each group. All `bytes` and `untouched_bytes` sum to `total_bytes`."""

    lines: Sequence[UserLine]
    """Of the groups `line` and `waited`."""
    imports: Sequence[UserLine]
    other: Sequence[UserLine]
    total_bytes: int

    @property
    def rows(self) -> list[UserLine]:
        """The rows of all groups, the user's own lines first."""
        return [*self.lines, *self.imports, *self.other]

    @property
    def untouched_bytes(self) -> int:
        """Allocated and in no residency snapshot touched: none of it is in RAM."""
        return sum(row.untouched_bytes for row in self.rows)

    @property
    def headline(self) -> UserLine | None:
        """The row to change first: of the user's own lines, as a rule; None where there is no row."""
        mine, imported, others = held_by(self.lines), held_by(self.imports), held_by(self.other)
        leads, touched = next(iter(self.rows), None), LEADS_ABOVE * (mine + imported + others)
        if imported > max(others, LEADS_ABOVE * mine):
            leads, touched = self.imports[0], imported
        if others > max(imported, LEADS_ABOVE * mine) and others >= WORTH_LEADING:
            leads, touched = self.other[0], others
        # What is never touched costs less than what is, and a line of the user's is easier to change than what stands
        # apart.
        unused = max(self.lines, key=lambda row: row.untouched_bytes, default=None)
        return unused if unused is not None and unused.untouched_bytes > touched else leads

    @property
    def top_line(self) -> TopLine | None:
        """The headline with the sums that its sentence tells."""
        row = self.headline
        if row is None:
            return None
        return {
            "group": row.group.value, "file": row.frame.file, "line": row.frame.line, "function": row.frame.function,
            "bytes": row.bytes, "untouched_bytes": row.untouched_bytes, "imports_bytes": held_by(self.imports),
            "other_bytes": held_by(self.other) if self.lines else 0, "all_untouched_bytes": self.untouched_bytes,
        }  # fmt: skip


def held_by(rows: Sequence[UserLine]) -> int:
    """What these rows hold together, in bytes, without what was never touched."""
    return sum(row.bytes for row in rows)


def rank_lines(tables: Tables, holdings: Holdings, never: Mapping[int, int] | None = None) -> Ranking:
    """The rows for what `holdings` has, of one snapshot and kind. `never` has what was never touched, by node; with
    {} nothing stands apart."""
    paths = _NearestFrames(tables)
    node = holdings.node
    untouched = untouched_of(never_touched(tables) if never is None else never, holdings)
    held, apart = holdings.bytes - untouched, np.flatnonzero(untouched)
    keys, at = map(np.concatenate, zip(paths.key(node), paths.key_of_untouched(node[apart]), strict=True))
    key, row_of = np.unique(keys, return_inverse=True)
    held_row, apart_row = np.split(row_of, [len(node)])

    def padded(values: Ints) -> Ints:
        return np.pad(values, (0, len(apart)))

    code, _ = _largest_part(row_of, paths.code[at], padded(held), len(key))
    names, package = paths.library_below(node)
    part = np.where(package == 0, 0, held)
    library, library_bytes = _largest_part(row_of, padded(package), padded(part), len(key))
    columns = (
        sum_at(len(key), row, values)
        for row, values in (
            (held_row, held), (held_row, holdings.blocks), (apart_row, untouched[apart]), (held_row, holdings.sampled),
        )
    )  # fmt: skip
    rows = [
        UserLine(
            *paths.row(place, of), count, blocks, unused,
            holdings.standard_error(sampled), names[lib] if lib_bytes > 0 else "", lib_bytes,
        )
        for place, of, count, blocks, unused, sampled, lib, lib_bytes in zip(
            key.tolist(), code, *(column.tolist() for column in columns), library, library_bytes, strict=True
        )
    ]  # fmt: skip
    rows.sort(key=lambda row: (-row.bytes, -row.untouched_bytes, row.frame.file, row.frame.line))
    lines = [row for row in rows if row.group.is_own_line]
    imports, other = ([row for row in rows if row.group == group] for group in (Group.imports, Group.other))
    return Ranking(lines, imports, other, holdings.total_bytes)


def row_key(group: Group, frame: Frame) -> object:
    """Equal for the same row of two rankings, whose names are of different code objects on its line."""
    return Group.line if group.is_own_line else group, frame.file, frame.line or frame.function


@dataclass(frozen=True, slots=True)
class PathRows:
    """For each call path of a capture, the row that its bytes belong to, as `rank_lines` has it: an index into
    `rows`; and the package that the user's line called on it, an index into `libraries`. `untouched` has, by call
    path, the bytes that were never touched, and `untouched_row` the row that these belong to."""

    rows: list[tuple[Group, Frame]]
    row: Ints
    libraries: list[str]
    library: Ints
    untouched: dict[int, int]
    untouched_row: dict[int, int]


def rows_of_paths(tables: Tables, node: Ints, size: Ints) -> PathRows:
    """The rows of these call paths, for a reader that ranks them at moments of its own choice. A row has the name of
    the code object that holds most of it by `size`, the bytes of each path."""
    paths = _NearestFrames(tables)
    known = set(node.tolist())
    untouched = {path: count for path, count in never_touched(tables).items() if path in known}
    never = np.array([*untouched], np.int64)
    key, at = map(np.concatenate, zip(paths.key(node), paths.key_of_untouched(never), strict=True))
    distinct, row = np.unique(key, return_inverse=True)
    code, _ = _largest_part(row, paths.code[at], np.pad(size, (0, len(never))), len(distinct))
    rows = [paths.row(place, of) for place, of in zip(distinct.tolist(), code, strict=True)]
    row, untouched_row = np.split(row, [len(node)])
    return PathRows(
        rows, row, *paths.library_below(node), untouched, dict(zip(untouched, untouched_row.tolist(), strict=True))
    )


def _largest_part(row_of: Ints, part_of: Ints, values: Ints, rows: int) -> tuple[list[int], list[int]]:
    """For each row, the part with the largest sum of `values`, the smallest number of equal ones, and that sum."""
    parts = int(part_of.max(initial=0)) + 1
    # One number each: rows of a matrix sort ten times slower.
    pairs, back = np.unique(row_of * parts + part_of, return_inverse=True)
    row, part = np.divmod(pairs, parts)
    summed = sum_at(len(pairs), back, values)
    order = np.lexsort((part, -summed, row))
    first = order[np.searchsorted(row[order], np.arange(rows))]
    return part[first].tolist(), summed[first].tolist()


class _NearestFrames:
    """For each node of a capture: the innermost node at or above it that is the user's, the import system's, or any
    Python line.

    `nearest` is the user's or the import system's, `owner` the user's, `innermost` any frame that is no label and not
    the import system's; 0 where there is none. `place` is equal for nodes on the same line of the same file, `code` is
    the code object of each node.
    """

    def __init__(self, tables: Tables) -> None:
        nodes, codes = tables["nodes"], tables["codes"]
        self._tables = tables
        self.codes = codes
        self._files, self._file = tables.files
        self.code: Ints = nodes["code"].astype(np.int64)
        self._parent = tables.paths.parent
        kind = codes["kind"].astype(np.int64)
        owner = tables.code_owner[self.code]
        owner[:1] = LIBRARY
        is_own, is_run = owner == OWN, owner == RUN
        number = np.arange(len(nodes))
        self.is_own: Bools = is_own | (is_run & (follow(np.where(is_own, number, self._parent)) == 0))
        self.is_import: Bools = owner == IMPORTS
        self.nearest = follow(np.where(self.is_own | self.is_import, number, self._parent))
        self.owner = follow(np.where(self.is_own, number, self._parent))
        is_python = (kind == CODE_PYTHON)[self.code]
        # What imports is shown, and not the import system's own frames.
        is_passed_over = (kind == CODE_LABEL)[self.code] | (self.is_import & is_python[self._parent])
        self.innermost = follow(np.where(is_passed_over, self._parent, number))
        is_mapper = np.array([bool(mapping_library(file)) for file in self._files], bool)[self._file] & (
            kind == CODE_LABEL
        )
        self._is_mapped_by_library: Bools = is_mapper[self.code]
        self.place: Ints = self._file[self.code] << 32 | nodes["line"]
        # Threads are on no line, and native frames may be: they are told apart by their names.
        nameless = nodes["line"] == 0
        self.place[nameless] = -1 - self.code[nameless]

    def library_below(self, node: Ints) -> tuple[list[str], Ints]:
        """The distinct packages, and for each of these nodes the one that the innermost line of the user's own code
        called on its path."""
        parent, number = self._parent, np.arange(len(self._parent))
        is_first = self.is_own[parent] | (parent == 0)
        first = follow(np.where(is_first | self.is_own, number, parent))
        code, library = self.code[first[node]], self._tables.code_owner == LIBRARY
        has_library = np.zeros(len(self._files), bool)
        has_library[self._file[library]] = True
        names = [
            module_of(file, "").partition(".")[0] if one else ""
            for file, one in zip(self._files, has_library.tolist(), strict=True)
        ]
        names = ["" if name.startswith("<") or name == "importlib" else name for name in names]
        distinct, of_file = numbered(["", *names])
        is_library = ~self.is_own[first[node]] & library[code]
        return distinct, np.where(is_library, of_file[1:][self._file[code]], 0)

    def key(self, node: Ints) -> tuple[Ints, Ints]:
        """For each of these nodes, the key of the row it belongs to, and the node at or above it that is on this
        row's line."""
        owner, nearest = self.owner[node], self.nearest[node]
        imports, other = (list(Group).index(group) for group in (Group.imports, Group.other))
        group = np.select([self.is_import[nearest], owner != 0], [imports, 0], other)
        at = np.where(owner != 0, owner, self.innermost[node])
        return self.place[at] * len(Group) + group, at

    def key_of_untouched(self, node: Ints) -> tuple[Ints, Ints]:
        """The same for memory of these nodes that was never touched: what a library mapped is on the library's row."""
        key, at = self.key(node)
        is_apart = self._is_mapped_by_library[node]
        apart = self.place[node] * len(Group) + list(Group).index(Group.other)
        return np.where(is_apart, apart, key), np.where(is_apart, node, at)

    def row(self, key: int, code: int) -> tuple[Group, Frame]:
        """The group and the frame of a row, by the code object that holds most of it."""
        place = key // len(Group)
        file = self._files[self._file.item(code)]
        library = mapping_library(file)
        if library:
            return Group.other, Frame(library, "", 0)
        function = function_of(self._tables.string(int(self.codes["function"][code])).removeprefix(WAITED_FOR))
        frame = Frame(function, file, place & 0xFFFFFFFF if place >= 0 else 0)
        group = tuple(Group)[key % len(Group)]
        is_waited = group == Group.line and self.codes["kind"][code] == CODE_WAIT
        return Group.waited if is_waited else group, frame
