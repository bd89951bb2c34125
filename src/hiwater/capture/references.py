"""Does every number in a capture lead somewhere, and is every figure one? Checked once, when the tables are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.capture import bounds
from hiwater.capture.format import KINDS
from hiwater.capture.layout import NEEDED_FIELDS, OPTIONAL_FIELDS, corrupt

Records = npt.NDArray[Any]


def check_references(header: dict[str, Any], tables: dict[str, Records]) -> None:
    """Every id points at a record, every parent is older than its child, every range lies inside its table."""
    counts = {name: len(records) for name, records in tables.items()}
    strings = tables["strings"]
    ends = strings["offset"].astype(np.float64) + strings["length"]  # a float cannot wrap; exact far beyond any file
    if counts["strings"] and float(ends.max()) > counts["string_bytes"]:
        raise corrupt("a string lies outside the strings")
    if int(strings["length"].sum(dtype=np.uint64)) > counts["string_bytes"]:
        raise corrupt("its strings overlap")  # and could be made to fill any memory
    nodes = tables["nodes"]
    if np.any(nodes["parent"][1:] >= np.arange(1, max(1, len(nodes)))):
        raise corrupt("a stack is its own ancestor")
    if len(nodes) and int(nodes["parent"][0]) != 0:
        raise corrupt("the node of nothing has a parent")
    for one in bounds.REFERENCES:
        if one.table not in tables:
            continue  # one that a capture may lack
        ids = tables[one.table][one.field]
        if len(ids) and int(ids.max()) >= counts.get(one.target, 0):
            raise corrupt(f"the {one.field} of a record of {one.table!r} does not exist")
        if one.most_bytes and int(strings["length"][ids].sum(dtype=np.uint64)) > one.most_bytes:
            raise corrupt(f"the texts in {one.field!r} of {one.table!r} come to more than {one.most_bytes >> 20} MiB")
    if header["stop_reason"] >= max(1, counts["strings"]):
        raise corrupt("its stop reason does not exist")
    if counts["accounts"] and int(tables["accounts"]["kind"].max()) >= len(KINDS):
        raise corrupt("an account is of no known kind of memory")
    if counts["account_peaks"] < counts["accounts"]:
        raise corrupt("accounts lack their peaks")
    _check_figures(tables)
    _check_searches(tables)
    _check_slices(tables["slices"], counts["slice_entries"])
    at_ns = tables["timeline"]["at_ns"]
    if np.any(at_ns[1:] < at_ns[:-1]):
        raise corrupt("its timeline runs backwards")


def _check_figures(tables: dict[str, Records]) -> None:
    for name, fields in (NEEDED_FIELDS | OPTIONAL_FIELDS).items():
        for field in fields:
            if name not in tables or not len(tables[name]) or tables[name].dtype[field].base.kind != "u":
                continue
            most = bounds.OTHER_FIGURES.get((name, field), bounds.LARGEST_FIGURE)
            if np.iinfo(tables[name].dtype[field].base).max > most and int(tables[name][field].max()) > most:
                raise corrupt(f"a figure in {field!r} of {name!r} is beyond any")


def _check_slices(slices: Records, entries: int) -> None:
    first, count = slices["first_entry"].astype(np.float64), slices["entry_count"].astype(np.float64)
    if len(slices) and (float((first + count).max()) > entries or float(count.sum()) > entries):
        raise corrupt("a slice lies outside the entries")
    if np.any(slices["end_ns"] < slices["start_ns"]):
        raise corrupt("a slice ends before it starts")


def _check_searches(tables: dict[str, Records]) -> None:
    """Of the searches for holders. Whoever follows parents must come to an end."""
    searches = tables.get("holder_searches", np.zeros(0))
    for search in searches:
        parts = []
        for name, first, count in bounds.PARTS_OF_SEARCHES:
            begin, length = int(search[first]), int(search[count])
            if name not in tables or begin + length > len(tables[name]):
                raise corrupt("a search for holders has more rows than there are")
            parts.append(tables[name][begin : begin + length])
        _check_search(search, *parts)


def _check_search(search: Any, paths: Records, blocks: Records, references: Records) -> None:
    number = np.arange(1, len(paths) + 1)
    if (paths["parent"] >= number).any() or (paths["dominator"] >= number).any():
        raise corrupt("a path of holders is its own parent")
    if paths["kind"].max(initial=0) > bounds.LAST_KIND_OF_STEP:
        raise corrupt("a path of holders is of an unknown kind")
    named = [
        (blocks["path"], 0),
        (references["from"], 1),
        (references["to"], 1),
        (np.array([int(search["target"])]), 0),
    ]
    if any(((ids < least) | (ids > len(paths))).any() for ids, least in named):
        raise corrupt("a search for holders names a path that is not there")
