"""The searches for what holds the interpreter's objects, as a capture has them. `native/holders/` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hiwater.capture.layout import corrupt
from hiwater.capture.reader import Records
from hiwater.capture.tables import Tables


class StepKind(IntEnum):
    """How a path's objects are referred to: `LabelKind` of native/holders/paths.h."""

    none = 0
    module = 1
    frame = 2
    thread = 3
    exception = 4
    c_code = 5
    garbage = 6
    variable = 7
    local = 8
    member = 9
    namespace = 10
    key = 11
    value = 12
    item = 13
    interpreter = 14


ROOTS = (*range(StepKind.module, StepKind.variable), StepKind.interpreter)
"""The kinds of paths that have no parent."""


@dataclass(frozen=True, slots=True)
class HolderSearch:
    """One search. `paths` has a record for each path: objects that are referred to in the same way. The path number n is record n − 1; parents and
    dominators have smaller numbers. `blocks` has what the accounts of a path's blocks hold, `references` the references between paths.

    `unheld` is like `blocks`: what belongs to no object that was found; none in a sampled recording.

    `number` counts from 1; `at_ns` is since the start of the recording; `objects`, `reference_count` and `bytes` are of all objects, also of
    paths that are not listed; `failure` says why nothing was found, "" otherwise; `request` is the number of the request that it answers.
    """

    number: int
    name: str
    at_ns: int
    objects: int
    reference_count: int
    bytes: int
    all_paths: int
    pause_ns: int
    duration_ns: int
    target: int
    failure: str
    request: int
    paths: Records
    blocks: Records
    unheld: Records
    references: Records


def read_searches(tables: Tables) -> list[HolderSearch]:
    """All searches of a capture, the oldest first. Raises CorruptCapture."""
    rows = tables.get("holder_searches")
    return [] if rows is None else [_search(tables, number, row) for number, row in enumerate(rows, 1)]


def last_search(tables: Tables) -> HolderSearch | None:
    """The last search that has found something. Raises CorruptCapture."""
    return next((search for search in reversed(read_searches(tables)) if not search.failure), None)


def _search(tables: Tables, number: int, row: np.void) -> HolderSearch:
    parts = [
        _part(tables, name, int(row[first]), int(row[count]))
        for name, first, count in (
            ("holder_paths", "first_path", "paths"),
            ("holder_blocks", "first_block", "blocks"),
            ("holder_references", "first_reference", "references_between"),
        )
    ]
    paths, blocks, references = parts
    _check(tables, paths, blocks, references)
    if int(row["target"]) > len(paths):
        raise corrupt("a search for holders names a path that is not there")
    figures = ("at_ns", "objects", "references", "bytes", "all_paths", "pause_ns", "duration_ns", "target")
    at_ns, objects, reference_count, held, all_paths, pause_ns, duration_ns, target = (
        int(row[name]) for name in figures
    )
    is_held = blocks["path"] != 0
    name, failure = tables.string(int(row["name"])), tables.string(int(row["failure"]))
    return HolderSearch(
        number, name, at_ns, objects, reference_count, held, all_paths, pause_ns, duration_ns, target, failure, int(row["request"]),
        paths, blocks[is_held], blocks[~is_held], references,
    )  # fmt: skip


def _part(tables: Tables, name: str, first: int, count: int) -> Records:
    rows = tables[name]
    if first + count > len(rows):
        raise corrupt("a search for holders has more rows than there are")
    return rows[first : first + count]


def _check(tables: Tables, paths: Records, blocks: Records, references: Records) -> None:
    """Whoever follows parents must come to an end, and every number must lead somewhere."""
    number = np.arange(1, len(paths) + 1)
    if (paths["parent"] >= number).any() or (paths["dominator"] >= number).any():
        raise corrupt("a path of holders is its own parent")
    if paths["kind"].max(initial=0) > max(StepKind):
        raise corrupt("a path of holders is of an unknown kind")
    if (blocks["path"] > len(paths)).any():
        raise corrupt("a search for holders names a path that is not there")
    for field in ("from", "to"):
        if ((references[field] == 0) | (references[field] > len(paths))).any():
            raise corrupt("a search for holders names a path that is not there")
    if (blocks["account"] >= max(1, len(tables["accounts"]))).any():
        raise corrupt("a search for holders names an account that is not there")
