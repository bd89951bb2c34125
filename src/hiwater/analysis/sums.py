"""Sums along call paths, and depth-first walks. Arrays have one dimension, with one element for each node unless
stated otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiwater.capture.paths import Ints

_FEW_LEVELS = 4096  # up to here, a pass for each level is faster than a step for each node


def depths(parent: Ints) -> Ints:
    """The depth of each node: its steps from node 0. Each pass doubles the distance: a stack 5,000 deep takes 13
    passes."""
    depth = np.ones(len(parent), np.int64)
    depth[:1] = 0
    jump = parent
    while jump.any():
        depth += depth[jump]
        jump = jump[jump]
    return depth


def with_callers(parent: Ints, used: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Add to the nodes that are `used` all their callers, and node 0. Changes `used`."""
    above = parent
    while above.any():  # each pass doubles the number of callers
        used[above[used]] = True
        above = above[above]
    used[:1] = True
    return used


def sum_upwards(parent: Ints, values: Ints) -> Ints:
    """The value of each node plus those of all its descendants. Requires parent[i] < i."""
    depth = depths(parent)
    deepest = int(depth.max(initial=0))
    if deepest > _FEW_LEVELS:
        return _sum_one_by_one(parent, values)
    order = np.argsort(depth.astype(np.int16), kind="stable")
    level = np.searchsorted(depth[order], np.arange(deepest + 2))
    total = values.copy()
    for number in range(deepest, 0, -1):
        nodes = order[level[number] : level[number + 1]]
        np.add.at(total, parent[nodes], total[nodes])
    return total


def _sum_one_by_one(parent: Ints, values: Ints) -> Ints:
    total, above = values.tolist(), parent.tolist()
    for node in range(len(total) - 1, 0, -1):
        total[above[node]] += total[node]
    return np.array(total, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """A depth-first walk: node i is visited as number enter[i], and all its descendants before number leave[i]."""

    enter: Ints
    leave: Ints


def walk(parent: Ints) -> Walk:
    """The depth-first walk from node 0, siblings in the order of their numbers."""
    size = sum_upwards(parent, np.ones(len(parent), np.int64))
    order = np.argsort(parent[1:], kind="stable") + 1
    sizes = size[order]
    before = np.cumsum(sizes) - sizes  # of all nodes with a smaller parent, or siblings with a smaller number
    is_first = np.ones(len(order), bool)
    is_first[1:] = parent[order][1:] != parent[order][:-1]
    before -= np.repeat(before[is_first], np.diff(np.append(np.flatnonzero(is_first), len(order))))
    enter = np.zeros(len(parent), np.int64)
    enter[order] = before + 1
    jump = parent
    while jump.any():
        enter += enter[jump]
        jump = jump[jump]
    return Walk(enter, enter + size)


def sum_below(visits: Walk, values: Ints) -> Ints:
    """What `sum_upwards` returns; a pass over the nodes is enough where the walk is known."""
    running = np.zeros(len(values) + 1, np.int64)
    running[1:][visits.enter] = values
    np.cumsum(running, out=running)
    return running[visits.leave] - running[visits.enter]


def outermost(visits: Walk, key: Ints) -> Ints:
    """The indices of the nodes (without 0) that have no ancestor with the same key. Their sums count each byte once,
    also in recursion."""
    nodes = np.arange(1, len(key))
    order = nodes[np.lexsort((visits.enter[1:], key[1:]))]
    keys = key[order]
    new_key = np.ones(len(order), bool)
    new_key[1:] = keys[1:] != keys[:-1]
    # Keys are offset by more than any visit number, so the running maximum of one key cannot reach the next.
    base = np.cumsum(new_key) * (len(key) + 1)
    reach = np.maximum.accumulate(visits.leave[order] + base)
    is_inside = np.zeros(len(order), bool)
    is_inside[1:] = ~new_key[1:] & (reach[:-1] - base[1:] > visits.enter[order][1:])
    return order[~is_inside]
