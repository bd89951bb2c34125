"""A whole capture in as few arrays as a page can carry: call paths in depth-first order, what held memory, and every slice of time.

holder   a call path with one kind of memory: an account of the capture, or several small ones merged into one. In a sampled recording
         there are two, one of sampled blocks and one of those recorded exactly
most     the most a holder had at any moment that can be asked for: the peak, the end, and the high of each slice
merge    the smallest stacks, by `most` and then by what they asked for in all, become one holder for each kind below their
         nearest caller that stays. All sums stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiwater.analysis import sums
from hiwater.analysis.call_tree import Grouping, build_call_tree, follow
from hiwater.capture import Capture, Frame
from hiwater.capture.format import KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables

MERGED_FRAME = Frame("[smaller stacks]", "", 0)
Bools = npt.NDArray[np.bool_]
_FEW_CHANGES = 500_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How many of each are kept, entries about. Of the holders those that held most come first, then those that asked for most."""

    holders: int = 120_000
    nodes: int = 400_000
    entries: int = 2_500_000


@dataclass(frozen=True, slots=True, eq=False)
class CompactedCapture:
    """`parent` and `frame` have an entry for each call path, callers before what they call and all below a path right after
    it; path 0 is none. `holder_node`, `holder_kind` and `columns` have one for each holder, in the capture's order.
    `entry_*` say by how much a holder differs from the slice before, in the order of the slices; the last slice is the open one.
    `merged_stacks` were merged, none of which ever had more than `merged_most_bytes`. `node_of_path` is the capture's own
    node for each path, -1 for one of smaller stacks; `holder_of_account` is -1 for accounts without any figure."""

    parent: Ints
    frame: Ints
    frames: list[Frame]
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
    """Everything that can be asked of a capture, with the smallest stacks merged where there are more than `limits`."""
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
    entry_bytes = sums.sum_at(len(distinct), back, changes.bytes)
    entry_blocks = sums.sum_at(len(distinct), back, changes.blocks)
    told = (entry_bytes != 0) | (entry_blocks != 0)
    merged = is_used & ~is_kept
    return CompactedCapture(
        shape.parent,
        shape.frame,
        shape.frames,
        shape.threads,
        shape.holder_node,
        shape.holder_kind,
        shape.holder_is_sampled,
        {name: sums.sum_at(length, shape.holder_of_account, values) for name, values in columns.items()},
        (distinct // length)[told],
        (distinct % length)[told],
        entry_bytes[told],
        entry_blocks[told],
        int(merged.sum()),
        int(most[merged].max(initial=0)),
        shape.node_of_path,
        np.where(is_used, shape.holder_of_account, -1),
    )


def _columns(capture: Capture) -> dict[str, Ints]:
    """What each account held at the peak and at the end, and what it asked for in all."""
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
    """Differences of accounts from one slice's high to the next one's."""

    slice: Ints
    account: Ints
    bytes: Ints
    blocks: Ints


def _changes(capture: Capture) -> _Changes:
    """All differences, those of the open slice last."""
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
    open_bytes = last.bytes - sums.sum_at(length, account, change_bytes)
    open_blocks = last.blocks - sums.sum_at(length, account, change_blocks)
    changed = np.flatnonzero((open_bytes != 0) | (open_blocks != 0))
    return _Changes(
        np.append(number, np.full(len(changed), len(slices))),
        np.append(account, changed),
        np.append(change_bytes, open_bytes[changed]),
        np.append(change_blocks, open_blocks[changed]),
    )


def _differences(values: Ints, order: Ints, is_same: Bools) -> Ints:
    """Each value less the one before it of the same account."""
    ordered = values[order]
    before = np.zeros(len(ordered), np.int64)
    before[1:] = np.where(is_same[1:], ordered[:-1], 0)
    changes = np.empty(len(values), np.int64)
    changes[order] = ordered - before
    return changes


def _most(columns: dict[str, Ints], changes: _Changes) -> Ints:
    """The most each account had at any moment that can be asked for."""
    most = np.maximum(columns["peak_bytes"], columns["end_bytes"])
    order = np.argsort(changes.account, kind="stable")  # they are in the order of the slices already
    accounts, ordered = changes.account[order], changes.bytes[order]
    running = np.cumsum(ordered)
    starts = np.flatnonzero(np.diff(accounts, prepend=-1))
    before = np.repeat(running[starts] - ordered[starts], np.diff(np.append(starts, len(order))))
    np.maximum.at(most, accounts, running - before)
    return most


def _choose(tables: Tables, limits: Limits, order: Ints, changes: _Changes) -> tuple[Bools, Bools]:
    """Which accounts stay, of those in `order`, and which call paths they need: fewer and fewer until all limits hold."""
    parent = _parents(tables)
    roots = tables.paths.is_thread & _needed(tables, parent, order)
    looked_at, part = _some_changes(changes)
    keep = min(len(order), limits.holders)
    while True:
        is_kept = np.zeros(len(tables.account_node), bool)
        is_kept[order[:keep]] = True
        node_kept = roots | _needed(tables, parent, order[:keep])  # what is merged still has its thread
        if keep <= 1:
            return is_kept, node_kept
        account = looked_at.account
        place = _nearest(parent, node_kept)[tables.account_node[account]] * len(KINDS) + tables.account_kind[account]
        holder = np.where(is_kept[account], account, len(is_kept) + place)
        told = len(np.unique(looked_at.slice * (len(is_kept) + len(parent) * len(KINDS)) + holder))
        if int(node_kept.sum()) <= limits.nodes and told <= limits.entries * part:
            return is_kept, node_kept
        keep = keep * 2 // 3


def _needed(tables: Tables, parent: Ints, accounts: Ints) -> Bools:
    """The call paths of these accounts with all their callers, and path 0."""
    used = np.zeros(len(parent), np.int64)
    used[tables.account_node[accounts]] = 1
    needed: Bools = sums.sum_upwards(parent, used) > 0
    needed[:1] = True
    return needed


def _some_changes(changes: _Changes) -> tuple[_Changes, float]:
    """The changes of some slices, evenly spread, and their part of all: enough to tell how many a choice leaves."""
    if len(changes.slice) <= _FEW_CHANGES:
        return changes, 1.0
    step = -(-len(changes.slice) // _FEW_CHANGES)
    chosen = changes.slice % step == 0
    some = _Changes(*(column[chosen] for column in (changes.slice, changes.account, changes.bytes, changes.blocks)))
    return some, len(some.slice) / len(changes.slice)


def _nearest(parent: Ints, node_kept: Bools) -> Ints:
    """For each call path itself or its nearest caller that stays."""
    return follow(np.where(node_kept, np.arange(len(parent)), parent))


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    parent: Ints
    frame: Ints
    frames: list[Frame]
    threads: dict[int, str]
    node_of_path: Ints
    holder_node: Ints
    holder_kind: Ints
    holder_is_sampled: Bools
    holder_of_account: Ints


def _merge(tables: Tables, is_kept: Bools, is_merged: Bools, node_kept: Bools) -> _Shape:
    """The kept paths and, after them, one more below each path that something was merged into; numbered depth first."""
    call_tree, parent = build_call_tree(tables, Grouping.stack), _parents(tables)
    kept = np.flatnonzero(node_kept)
    number = np.zeros(len(parent), np.int64)
    number[kept] = np.arange(len(kept))
    nearest = _nearest(parent, node_kept)
    into, merged_place = np.unique(number[nearest[tables.account_node[is_merged]]], return_inverse=True)
    node_of_account = number[nearest[tables.account_node]]
    node_of_account[is_merged] = len(kept) + merged_place
    grown = np.append(number[parent[kept]], into)
    enter = sums.walk(grown).enter
    parents, keys, origin = (np.empty(len(grown), np.int64) for _ in range(3))
    parents[enter] = enter[grown]
    none = np.full(len(into), -1)
    keys[enter] = np.append(call_tree.key[kept], none)
    origin[enter] = np.append(kept, none)
    distinct, frame = np.unique(keys, return_inverse=True)
    frames = [MERGED_FRAME if key < 0 else call_tree.frames[key] for key in distinct.tolist()]
    roots = np.flatnonzero(tables.paths.is_thread & node_kept)
    names, name = tables.paths.threads(roots)
    threads = {place: names[which] for place, which in zip(enter[number[roots]].tolist(), name.tolist(), strict=True)}
    return _Shape(
        parents, frame, frames, threads, origin, *_holders(tables, is_kept, is_merged, enter[node_of_account])
    )


def _holders(tables: Tables, is_kept: Bools, is_merged: Bools, node: Ints) -> tuple[Ints, Ints, Bools, Ints]:
    """(node, kind, whether of sampled blocks) of each holder and the holder of each account: those that stay in their order, then the merged ones. Accounts
    without any figure are given to the first holder, to which they add nothing."""
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


def _parents(tables: Tables) -> Ints:
    parent = tables["nodes"]["parent"].astype(np.int64)
    parent[:1] = 0
    return parent
