"""Which frame of one recording is which of another, although files were moved and lines shifted; and which process of
one run is which of another.

Three steps, each on what the one before it found:

- files: equal paths; then equal places, as seen from the project or from site-packages; then the two scripts that were
  run, whatever they are called; then what ends alike, where that names one file on either side
- functions: equal qualified names in files that match, and of several with one name those whose first lines match, in
  their order; a comprehension is part of the function around it
- lines: of one function, in their order: see `align`
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import functions_of_codes
from hiwater.analysis.naming import function_of, place_of
from hiwater.capture import Capture, Frame, program
from hiwater.capture.paths import Ints, sum_at
from hiwater.capture.tables import Tables

SourceText = Callable[[str, int], str]  # the text of a line of a file; "" where it is not known as it was when it ran
Key = tuple[str, str, int]

_LONGEST_TAIL = 4  # parts of a path that are compared where nothing else matches
_LARGEST_TABLE = 40_000  # pairs of lines that are weighed; a function with more of them keeps its line numbers
_ALIKE = 0.5  # as difflib measures: from here on two texts may be one line, edited


@dataclass(frozen=True, slots=True)
class LineFacts:
    """What is known of one line of a function: how far below the function's first line it stands, its text ("": not
    known), the functions it called, and the bytes that it and these allocated over the whole recording."""

    line: int
    offset: int
    text: str
    callees: frozenset[str]
    allocated_bytes: int = 0


@dataclass(slots=True)
class Side:
    """One of the two captures, with what matching needs of it."""

    tables: Tables
    source: SourceText
    files: list[str] = field(default_factory=list)
    lines: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    first_lines: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    callees: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    allocated: dict[Key, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        tables, nodes = self.tables, self.tables["nodes"]
        columns = (tables["codes"][name].tolist() for name in ("function", "file", "first_line"))
        codes = [
            (function_of(tables.string(function)), tables.string(file), first)
            for function, file, first in zip(*columns, strict=True)
        ]
        for code in functions_of_codes(tables)[0].tolist():
            function, file, first = codes[code]
            self.first_lines[function, file].add(first)
        self.files = list(dict.fromkeys(file for _, file, _ in codes))
        # A line is many nodes: each is looked at once.
        pairs, pair_of = np.unique(tables.paths.place, return_inverse=True)
        allocated = sum_at(len(pairs), pair_of, _allocated(tables))
        keys: list[Key] = [(*codes[pair >> 32][:2], pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        for key, allocated_bytes in zip(keys, allocated.tolist(), strict=True):
            self.lines[key[:2]].add(key[2])
            self.allocated[key] += allocated_bytes
        called = nodes[nodes["parent"] != 0]
        for call in np.unique(pair_of[called["parent"]] << 32 | called["code"]).tolist():
            self.callees[keys[call >> 32]].add(codes[call & 0xFFFFFFFF][0])

    def facts(self, function: str, file: str) -> list[LineFacts]:
        """The recorded lines of a function, in order."""
        first = min(self.first_lines[function, file])
        found = []
        for line in sorted(self.lines[function, file]):
            callees = frozenset(self.callees.get((function, file, line), ()))
            allocated = self.allocated[function, file, line]
            found.append(LineFacts(line, line - first, self.source(file, line), callees, allocated))
        return found

    def definitions(self, function: str, file: str) -> list[LineFacts]:
        """The first lines of the functions with this name, in order."""
        lines = sorted(self.first_lines[function, file])
        return [LineFacts(line, line - lines[0], self.source(file, line), frozenset()) for line in lines]

    @property
    def script(self) -> str:
        """The file that was run, when the capture tells; what stands for it where the text of `-c` was."""
        argv, folder = program.read_process(self.tables).argv, self.tables.facts.get("cwd", "")
        if argv[:1] == ("-c",):
            return self.tables.facts.get("command", "")
        return str(PurePosixPath(folder, argv[0])) if argv and argv[0] else ""

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders that project files may be seen from: the script's and the current one."""
        return (str(PurePosixPath(self.script).parent) if self.script else "", self.tables.facts.get("cwd", ""))


class Matching:
    """Names frames of both captures so that those that match are named alike: by what the frame of the later one is."""

    def __init__(self, before: Side, after: Side) -> None:
        self._file = _match_files(before, after)
        self._line: dict[Key, int] = {}
        self._first_line: dict[Key, int] = {}
        for function, file in before.lines:
            there = self._file.get(file)
            if there is not None and (function, there) in after.lines:
                self._match_lines(before, after, function, (file, there))
                self._match_functions(before, after, function, (file, there))

    def _match_lines(self, before: Side, after: Side, function: str, files: tuple[str, str]) -> None:
        here, there = before.facts(function, files[0]), after.facts(function, files[1])
        paired = align(here, there)
        for line in here:
            # A line without a partner gets a number that no line has: it must not meet another one.
            self._line[function, files[0], line.line] = paired.get(line.line, -line.line)

    def _match_functions(self, before: Side, after: Side, function: str, files: tuple[str, str]) -> None:
        here, there = before.definitions(function, files[0]), after.definitions(function, files[1])
        is_one = len(here) == len(there) == 1
        paired = {here[0].line: there[0].line} if is_one else align(here, there)
        for line in here:
            self._first_line[function, files[0], line.line] = paired.get(line.line, -line.line)

    def file_before(self, file: str) -> str:
        """The name of a file of the earlier capture."""
        return self._file.get(file, "\0" + file)

    def before(self, frame: Frame) -> Key:
        """The name of a frame of the earlier capture."""
        function = function_of(frame.function)
        line = self._line.get((function, frame.file, frame.line), frame.line)
        return function, self.file_before(frame.file), line

    def function_before(self, function: Frame) -> Key:
        """The name of a function of the earlier capture, a frame at its first line."""
        key = (function.function, function.file, function.line)
        return function.function, self.file_before(function.file), self._first_line.get(key, function.line)

    @staticmethod
    def after(frame: Frame) -> Key:
        """The name of a frame or a function of the later capture."""
        return function_of(frame.function), frame.file, frame.line


def align(before: Sequence[LineFacts], after: Sequence[LineFacts]) -> dict[int, int]:
    """Which line of a function became which: pairs that do not cross, chosen so that what speaks for them weighs most.

    For a pair speak, in this order: the same text, where both texts are known; a similar text; the same function called
    by both, and nearly as many bytes allocated over the whole recording; that both call nothing; the same distance from
    the function's first line. Two lines cannot be one when their texts are known and have little in common, or when
    they call different functions only, unless their text is the same.
    """
    if [line.offset for line in before] == [line.offset for line in after] and _texts_agree(before, after):
        return {here.line: there.line for here, there in zip(before, after, strict=True)}
    if len(before) * len(after) > _LARGEST_TABLE:
        numbers = {there.offset: there.line for there in after}
        return {here.line: numbers[here.offset] for here in before if here.offset in numbers}
    return _best_pairs(before, after, [[_weight(here, there) for there in after] for here in before])


def _texts_agree(before: Sequence[LineFacts], after: Sequence[LineFacts]) -> bool:
    return all(
        not here.text or not there.text or here.text == there.text for here, there in zip(before, after, strict=True)
    )


def _weight(here: LineFacts, there: LineFacts) -> float:
    """How much speaks for two lines being one; 0 where they cannot be."""
    weight = 0.1
    if here.text and there.text:
        alike = difflib.SequenceMatcher(None, here.text, there.text, autojunk=False).ratio()
        weight += 8 if alike == 1 else 4 * alike if alike >= _ALIKE else 0
        if alike < _ALIKE and not (here.callees & there.callees and here.offset == there.offset):
            return 0
    if here.callees and there.callees and not here.callees & there.callees:
        return weight if here.text and here.text == there.text else 0
    weight += 2 if here.callees & there.callees else 1 if here.callees == there.callees else 0
    less, more = sorted((here.allocated_bytes, there.allocated_bytes))
    weight += 2 * less / more if less > 0 else 0
    return weight + 1 / (1 + abs(here.offset - there.offset))


def _allocated(tables: Tables) -> Ints:
    """For each node, the bytes that it and what it called allocated over the whole recording."""
    own = sum_at(len(tables["nodes"]), tables.account_node, tables["accounts"]["total_bytes"].astype(np.int64))
    return sums.sum_upwards(tables.paths.parent, own)


def _best_pairs(
    before: Sequence[LineFacts], after: Sequence[LineFacts], weights: Sequence[Sequence[float]]
) -> dict[int, int]:
    """Needleman and Wunsch's alignment (J. Mol. Biol. 48, 1970) without a cost for gaps."""
    best = [[0.0] * (len(after) + 1) for _ in range(len(before) + 1)]
    for row, line in enumerate(weights):
        for column, weight in enumerate(line):
            taken = best[row][column] + weight if weight else 0.0
            best[row + 1][column + 1] = max(taken, best[row][column + 1], best[row + 1][column])
    pairs, row, column = {}, len(before), len(after)
    while row and column:
        if best[row][column] == best[row - 1][column]:
            row -= 1
        elif best[row][column] == best[row][column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs[before[row].line] = after[column].line
    return pairs


def _match_files(before: Side, after: Side) -> dict[str, str]:
    """For files of the earlier capture, those of the later one that match."""
    found: dict[str, str] = {}
    taken: set[str] = set()

    def pair_up(name_before: Callable[[str], str], name_after: Callable[[str], str]) -> None:
        here = _by_name((file for file in before.files if file not in found), name_before)
        there = _by_name((file for file in after.files if file not in taken), name_after)
        for name, files in here.items():
            if name and len(files) == 1 and len(there.get(name, ())) == 1:
                found[files[0]] = there[name][0]
                taken.add(there[name][0])

    if "" in before.files and "" in after.files:  # what is not Python code has no file
        found[""] = ""
        taken.add("")
    pair_up(lambda file: file, lambda file: file)
    pair_up(lambda file: place_of(file, before.roots), lambda file: place_of(file, after.roots))
    pair_up(lambda file: "=" * (file == before.script), lambda file: "=" * (file == after.script))
    for parts in range(_LONGEST_TAIL, 0, -1):
        pair_up(lambda file, parts=parts: _tail(file, parts), lambda file, parts=parts: _tail(file, parts))  # type: ignore[misc]
    return found


def _by_name(files: Iterable[str], name: Callable[[str], str]) -> dict[str, list[str]]:
    named = defaultdict(list)
    for file in files:
        named[name(file)].append(file)
    return named


def _tail(file: str, parts: int) -> str:
    """The last parts of a path; "" for one that has fewer."""
    pieces = file.split("/")
    return "/".join(pieces[-parts:]) if file.startswith("/") and len(pieces) > parts else ""


def process_pairs(before: Sequence[Capture], after: Sequence[Capture]) -> list[tuple[Capture, Capture]]:
    """Pairs of processes of two runs: by equal rank and program, then by the order of their starts.

    Two single processes are a pair, whatever their names are.
    """
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    named = [_by_role(captures) for captures in (before, after)]
    return [(capture, named[1][role]) for role, capture in named[0].items() if role in named[1]]


def _by_role(captures: Sequence[Capture]) -> dict[tuple[str, str, int], Capture]:
    found: dict[tuple[str, str, int], Capture] = {}
    known = Counter[tuple[str, str]]()
    for capture in sorted(captures, key=lambda one: (one.process.started_unix_ns, one.process.pid)):
        program = capture.process.argv[0].rsplit("/", 1)[-1] if capture.process.argv else ""
        program = capture.device or program
        rank = capture.facts.get("rank", "")
        found[rank, program, known[rank, program]] = capture
        known[rank, program] += 1
    return found
