"""The markers of a recording, each with its call path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiwater.capture.paths import AtCallPath
from hiwater.capture.references import Records
from hiwater.capture.tables import Tables

_REFUSAL, _NAMED = 2, 5
REFUSED = "out of memory"
_NAMES = {1: "fork", _REFUSAL: REFUSED, 3: "exec", 4: "gc", _NAMED: "named"}


@dataclass(frozen=True, slots=True)
class Marker(AtCallPath):
    """An event at `at_ns`: `kind` is "fork" (value: the child's pid), "out of memory" (requested bytes), "exec",
    "gc" (collections) or "named": then `name` is what the program called it with `hiwater.mark()`. Collections are
    counted since the previous sample, at most 10 ms earlier, and have the time of the first sample after them."""

    at_ns: int
    kind: str
    value: int
    name: str = ""


def read_markers(tables: Tables) -> tuple[Marker, ...]:
    return _of_rows(tables, tables["markers"])


def read_refusals(tables: Tables) -> tuple[Marker, ...]:
    rows = tables["markers"]
    return _of_rows(tables, rows[rows["kind"] == _REFUSAL])


def has_refusals(tables: Tables) -> bool:
    return bool((tables["markers"]["kind"] == _REFUSAL).any())


def _of_rows(tables: Tables, rows: Records) -> tuple[Marker, ...]:
    names, thread = tables.paths.threads(rows["node"].astype(np.int64))
    columns = (rows[name].tolist() for name in ("at_ns", "kind", "value", "node"))
    return tuple(
        Marker(
            names[number], node, tables.paths, at_ns, _NAMES.get(kind, "other"), value,
            tables.string(value) if kind == _NAMED else "",
        )
        for at_ns, kind, value, node, number in zip(*columns, thread.tolist(), strict=True)
    )  # fmt: skip
