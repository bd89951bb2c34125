"""The searches for what holds the interpreter's objects, as a capture has them. `native/holders/` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hiwater.capture import bounds
from hiwater.capture.references import Records
from hiwater.capture.tables import Tables


class StepKind(IntEnum):
    """How a path's objects are referred to: `hw_label_kind` of native/holders/python_heap.h."""

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
    """One search. `paths` has a record for each path: objects that are referred to in the same way. The path number n
    is record n − 1; parents and dominators have smaller numbers. `blocks` has what the accounts of a path's blocks
    hold, `references` the references between paths.

    `unheld` is like `blocks`: what belongs to no object that was found; none in a sampled recording.

    `number` counts from 1; `at_ns` is since the start of the recording; `objects`, `reference_count` and `bytes` are of
    all objects, also of paths that are not listed; `failure` says why nothing was found, "" otherwise; `request` is the
    number of the request that it answers.
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
    """All searches of a capture, the oldest first."""
    rows = tables.get("holder_searches")
    return [] if rows is None else [_search(tables, number, row) for number, row in enumerate(rows, 1)]


def last_search(tables: Tables) -> HolderSearch | None:
    """The last search that has found something."""
    return next((search for search in reversed(read_searches(tables)) if not search.failure), None)


def _search(tables: Tables, number: int, row: np.void) -> HolderSearch:
    paths, blocks, references = (
        tables[name][int(row[first]) : int(row[first]) + int(row[count])]
        for name, first, count in bounds.PARTS_OF_SEARCHES
    )
    figures = ("at_ns", "objects", "references", "bytes", "all_paths", "pause_ns", "duration_ns", "target")
    at_ns, objects, reference_count, held, all_paths, pause_ns, duration_ns, target = (
        int(row[name]) for name in figures
    )
    is_held = blocks["path"] != 0
    name, failure = tables.string(int(row["name"])), tables.string(int(row["failure"]))
    return HolderSearch(
        number, name, at_ns, objects, reference_count, held, all_paths, pause_ns, duration_ns, target, failure,
        int(row["request"]), paths, blocks[is_held], blocks[~is_held], references,
    )  # fmt: skip
