"""A whole capture in arrays small enough for a page: call paths in depth-first order, holders of memory, and every
slice of time.

- holder: a call path with one kind of memory: an account of the capture, or several small ones merged into one. A
  sampled recording has two, one of sampled blocks and one of blocks recorded exactly
- most: the highest bytes of a holder at any moment that the page can show: the peak, the end, and the peak of each
  slice
- merge: the smallest stacks, by `most` and then by their total bytes, become one holder for each kind below their
  nearest caller that is kept. All sums stay the same
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiwater.analysis import sums
from hiwater.analysis.call_tree import Grouping, build_call_tree, follow
from hiwater.capture import Capture, Frame
from hiwater.capture.format import KINDS
from hiwater.capture.paths import Ints, sum_at
from hiwater.capture.tables import Tables

MERGED_FRAME = Frame("[smaller stacks]", "", 0)
Bools = npt.NDArray[np.bool_]
_FEW_CHANGES = 500_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How many of each are kept (entries approximately). Holders with the highest `most` come first, then those with
    most total bytes."""

    holders: int = 120_000
    nodes: int = 400_000
    entries: int = 2_500_000


@dataclass(frozen=True, slots=True, eq=False)
class CompactedCapture:
    """The arrays have one dimension and are int64 or bool.

    `parent` and `frame` have an element for each call path in depth-first order; path 0 is none. `functions` has for
    each of `frames` its function at the function's first line. `node_of_path` is the capture's node of each path, -1
    for a path of merged stacks. `holder_node`, `holder_kind`, `holder_is_sampled` and each of `columns` have an element
    for each holder, in the order of the capture's accounts. `holder_of_account` has the holder's index for each
    account, -1 for accounts without figures. The `entry_` arrays have an element for each difference of a holder from
    the slice before, in the order of the slices; the last slice is the open one. `merged_stacks` stacks were merged,
    each with at most `merged_most_bytes`.
    """

    parent: Ints
    frame: Ints
    frames: list[Frame]
    functions: list[Frame]
    threads: dict[int, str]
    holder_node: Ints
    holder_kind: Ints
    holder_is_sampled: Bools
    columns: dict[str, Ints]
    entry_slice: Ints
    entry_holder: Ints
    entry_bytes: Ints
    entry_blocks: Ints
    merged_stacks: int
    merged_most_bytes: int
    node_of_path: Ints
    holder_of_account: Ints


def compact(capture: Capture, limits: Limits | None = None) -> CompactedCapture:
    """All data of a capture that a page shows, with the smallest stacks merged if there are more than `limits`."""
    bounds = limits or Limits()
    columns = _columns(capture)
    changes = _changes(capture)
    most = _most(columns, changes)
    is_used = np.any([values != 0 for values in columns.values()], axis=0)
    is_used[changes.account] = True
    order = np.lexsort((-columns["total_bytes"], -most, ~is_used))[: int(is_used.sum())]
    is_kept, node_kept = _choose(capture.tables, bounds, order, changes)
    shape = _merge(capture.tables, is_kept, is_used & ~is_kept, node_kept)
    length = len(shape.holder_node)
    key = changes.slice * length + shape.holder_of_account[changes.account]
    distinct, back = np.unique(key, return_inverse=True)
    entry_bytes = sum_at(len(distinct), back, changes.bytes)
    entry_blocks = sum_at(len(distinct), back, changes.blocks)
    differs = (entry_bytes != 0) | (entry_blocks != 0)
    merged = is_used & ~is_kept
    return CompactedCapture(
        shape.parent,
        shape.frame,
        shape.frames,
        shape.functions,
        shape.threads,
        shape.holder_node,
        shape.holder_kind,
        shape.holder_is_sampled,
        {name: sum_at(length, shape.holder_of_account, values) for name, values in columns.items()},
        (distinct // length)[differs],
        (distinct % length)[differs],
        entry_bytes[differs],
        entry_blocks[differs],
        int(merged.sum()),
        int(most[merged].max(initial=0)),
        shape.node_of_path,
        np.where(is_used, shape.holder_of_account, -1),
    )


def _columns(capture: Capture) -> dict[str, Ints]:
    """The figures of each account at the peak, at the end, and in total."""
    accounts, peaks = capture.tables["accounts"], capture.tables["account_peaks"]
    return {
        "peak_bytes": capture.peak.bytes,
        "peak_blocks": capture.peak.blocks,
        "end_bytes": capture.end.bytes,
        "end_blocks": capture.end.blocks,
        "total_bytes": accounts["total_bytes"].astype(np.int64),
        "total_blocks": accounts["total_blocks"].astype(np.int64),
        "temporaries": peaks["temporaries"][: len(accounts)].astype(np.int64),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """Differences of accounts from the peak of one slice to the peak of the next."""

    slice: Ints
    account: Ints
    bytes: Ints
    blocks: Ints


def _changes(capture: Capture) -> _Changes:
    """All differences. Those of the open slice come last."""
    entries, slices = capture.tables["slice_entries"], capture.tables["slices"]
    first, count = slices["first_entry"].astype(np.int64), slices["entry_count"].astype(np.int64)
    number = np.repeat(np.arange(len(slices)), count)
    place = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    account = entries["account"][place].astype(np.int64)
    values, blocks = entries["bytes"][place].astype(np.int64), entries["blocks"][place].astype(np.int64)
    by_account = np.argsort(account, kind="stable")
    is_same = np.zeros(len(account), bool)
    is_same[1:] = account[by_account][1:] == account[by_account][:-1]
    change_bytes, change_blocks = _differences(values, by_account, is_same), _differences(blocks, by_account, is_same)
    length = len(capture.tables.account_node)
    last = capture.of_slice(capture.slices[-1])
    open_bytes = last.bytes - sum_at(length, account, change_bytes)
    open_blocks = last.blocks - sum_at(length, account, change_blocks)
    changed = np.flatnonzero((open_bytes != 0) | (open_blocks != 0))
    return _Changes(
        np.append(number, np.full(len(changed), len(slices))),
        np.append(account, changed),
        np.append(change_bytes, open_bytes[changed]),
        np.append(change_blocks, open_blocks[changed]),
    )


def _differences(values: Ints, order: Ints, is_same: Bools) -> Ints:
    """Each value minus the previous one of the same account."""
    ordered = values[order]
    before = np.zeros(len(ordered), np.int64)
    before[1:] = np.where(is_same[1:], ordered[:-1], 0)
    changes = np.empty(len(values), np.int64)
    changes[order] = ordered - before
    return changes


def _most(columns: dict[str, Ints], changes: _Changes) -> Ints:
    """The highest bytes of each account at any moment that the page can show."""
    most = np.maximum(columns["peak_bytes"], columns["end_bytes"])
    order = np.argsort(changes.account, kind="stable")  # they are in the order of the slices already
    accounts, ordered = changes.account[order], changes.bytes[order]
    running = np.cumsum(ordered)
    starts = np.flatnonzero(np.diff(accounts, prepend=-1))
    before = np.repeat(running[starts] - ordered[starts], np.diff(np.append(starts, len(order))))
    np.maximum.at(most, accounts, running - before)
    return most


def _choose(tables: Tables, limits: Limits, order: Ints, changes: _Changes) -> tuple[Bools, Bools]:
    """The accounts in `order` that are kept, and the call paths that they need: fewer in each step until all limits
    are kept."""
    parent = tables.paths.parent
    roots = tables.paths.is_thread & _needed(tables, parent, order)
    looked_at, part = _some_changes(changes)
    keep = min(len(order), limits.holders)
    while True:
        is_kept = np.zeros(len(tables.account_node), bool)
        is_kept[order[:keep]] = True
        node_kept = roots | _needed(tables, parent, order[:keep])  # merged stacks keep their thread
        if keep <= 1:
            return is_kept, node_kept
        account = looked_at.account
        place = _nearest(parent, node_kept)[tables.account_node[account]] * len(KINDS) + tables.account_kind[account]
        holder = np.where(is_kept[account], account, len(is_kept) + place)
        pairs = np.sort(looked_at.slice * (len(is_kept) + len(parent) * len(KINDS)) + holder)
        entries = int((np.diff(pairs, prepend=-1) != 0).sum())  # np.unique() takes seconds where few are equal
        if int(node_kept.sum()) <= limits.nodes and entries <= limits.entries * part:
            return is_kept, node_kept
        keep = keep * 2 // 3


def _needed(tables: Tables, parent: Ints, accounts: Ints) -> Bools:
    """The call paths of these accounts with all their callers, and path 0."""
    used = np.zeros(len(parent), bool)
    used[tables.account_node[accounts]] = True
    return sums.with_callers(parent, used)


def _some_changes(changes: _Changes) -> tuple[_Changes, float]:
    """The changes of some evenly spread slices, and their share of all: enough to estimate how many a choice keeps."""
    if len(changes.slice) <= _FEW_CHANGES:
        return changes, 1.0
    step = -(-len(changes.slice) // _FEW_CHANGES)
    chosen = changes.slice % step == 0
    some = _Changes(*(column[chosen] for column in (changes.slice, changes.account, changes.bytes, changes.blocks)))
    return some, len(some.slice) / len(changes.slice)


def _nearest(parent: Ints, node_kept: Bools) -> Ints:
    """For each call path, itself or its nearest caller that is kept."""
    return follow(np.where(node_kept, np.arange(len(parent)), parent))


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    parent: Ints
    frame: Ints
    frames: list[Frame]
    functions: list[Frame]
    threads: dict[int, str]
    node_of_path: Ints
    holder_node: Ints
    holder_kind: Ints
    holder_is_sampled: Bools
    holder_of_account: Ints


def _merge(tables: Tables, is_kept: Bools, is_merged: Bools, node_kept: Bools) -> _Shape:
    """The kept paths, and one more below each path into which stacks were merged, numbered depth first."""
    call_tree, parent = build_call_tree(tables, Grouping.stack), tables.paths.parent
    kept = np.flatnonzero(node_kept)
    number = np.zeros(len(parent), np.int64)
    number[kept] = np.arange(len(kept))
    nearest = _nearest(parent, node_kept)
    into, merged_place = np.unique(number[nearest[tables.account_node[is_merged]]], return_inverse=True)
    node_of_account = number[nearest[tables.account_node]]
    node_of_account[is_merged] = len(kept) + merged_place
    all_parents = np.append(number[parent[kept]], into)
    enter = sums.walk(all_parents).enter
    parents, keys, origin = (np.empty(len(all_parents), np.int64) for _ in range(3))
    parents[enter] = enter[all_parents]
    none = np.full(len(into), -1)
    keys[enter] = np.append(call_tree.key[kept], none)
    origin[enter] = np.append(kept, none)
    distinct, frame = np.unique(keys, return_inverse=True)
    frames, functions = (
        [MERGED_FRAME if key < 0 else of_key[key] for key in distinct.tolist()]
        for of_key in (call_tree.frames, call_tree.functions)
    )
    roots = np.flatnonzero(tables.paths.is_thread & node_kept)
    names, name = tables.paths.threads(roots)
    threads = {place: names[which] for place, which in zip(enter[number[roots]].tolist(), name.tolist(), strict=True)}
    return _Shape(
        parents,
        frame,
        frames,
        functions,
        threads,
        origin,
        *_holders(tables, is_kept, is_merged, enter[node_of_account]),
    )


def _holders(tables: Tables, is_kept: Bools, is_merged: Bools, node: Ints) -> tuple[Ints, Ints, Bools, Ints]:
    """(node, kind, whether of sampled blocks) of each holder and the holder of each account: kept ones in their
    order, then the merged ones. Accounts without figures get the first holder, to which they add nothing."""
    of_account = np.zeros(len(is_kept), np.int64)
    stays = np.flatnonzero(is_kept)
    of_account[stays] = np.arange(len(stays))
    what = (node * len(KINDS) + tables.account_kind) * 2 + tables.account_is_sampled
    merged, place = np.unique(what[is_merged], return_inverse=True)
    of_account[is_merged] = len(stays) + place
    whats = np.append(what[stays], merged)
    if not len(whats):
        whats = np.zeros(1, np.int64)
    return whats // 2 // len(KINDS), whats // 2 % len(KINDS), whats % 2 == 1, of_account
