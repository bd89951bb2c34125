"""A tree to look at: equal frames joined, most first, and what is too small to see summed up instead of drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hiwater.analysis import sums
from hiwater.analysis.call_tree import CallTree
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Frame, Ints, sum_at
from hiwater.capture.snapshot import Holdings

_FIGURES = 3 + len(COUNTED_KINDS)  # bytes, blocks, bytes of sampled blocks, bytes of each counted kind


@dataclass(slots=True)
class Branch:
    """A frame and what was held below it.

    `bytes` = `self_bytes` + the children's bytes + `hidden_bytes`. In an inverted tree a child is a caller, and own
    bytes are those of stacks that begin here. `kind_bytes` has one figure for each counted kind.
    """

    frame: Frame | None
    depth: int
    bytes: int
    blocks: int
    self_bytes: int
    kind_bytes: tuple[int, ...]
    error_bytes: int = 0  # standard error of `bytes`, at most
    hidden_bytes: int = 0
    children: list[Branch] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """The nodes one branch stands for, with a row of figures for each, and for inverted trees where each row now is."""

    nodes: Ints
    figures: Ints


def build_display_tree(
    call_tree: CallTree, holdings: Holdings, *, minimum_bytes: int = 0, deepest: int = 1 << 30, inverted: bool = False
) -> Branch:
    """The tree of what is held. Branches below `minimum_bytes`, or further than `deepest` from the root, are summed
    up in their parent's `hidden_bytes`."""
    rows = _rows(call_tree, holdings)
    grower = _Inverted(call_tree, rows) if inverted else _Upright(call_tree, rows)
    root_figures = grower.start.figures.sum(axis=0) if inverted else grower.start.figures[0]
    root = _branch(holdings, None, 0, root_figures)
    waiting = [(root, grower.start)]
    while waiting:
        branch, group = waiting.pop()
        shown = 0
        for key, below, figures in grower.below(group):
            if int(figures[0]) < max(1, minimum_bytes) or branch.depth >= deepest:
                branch.hidden_bytes += int(figures[0])
                continue
            child = _branch(holdings, call_tree.frames[key], branch.depth + 1, figures)
            branch.children.append(child)
            shown += child.bytes
            waiting.append((child, below))
        branch.self_bytes = branch.bytes - branch.hidden_bytes - shown
        if len(branch.children) > 1:
            branch.children.sort(key=lambda child: (-child.bytes, str(child.frame)))
    return root


def _branch(holdings: Holdings, frame: Frame | None, depth: int, figures: Ints) -> Branch:
    count, blocks, sampled, *kinds = figures.tolist()
    return Branch(frame, depth, count, blocks, 0, tuple(kinds), holdings.standard_error(sampled) if sampled else 0)


def _rows(call_tree: CallTree, holdings: Holdings) -> tuple[Ints, Ints]:
    """(place, figures) for each holding: bytes, blocks, and bytes under the column of its kind."""
    figures = np.zeros((len(holdings.node), _FIGURES), np.int64)
    figures[:, 0], figures[:, 1], figures[:, 2] = holdings.bytes, holdings.blocks, holdings.sampled
    counted = np.flatnonzero(is_counted(holdings.kind))
    figures[counted, 3 + holdings.kind[counted]] = holdings.bytes[counted]
    return call_tree.place[holdings.node], figures


class _Upright:
    """From callers to what they called: totals are summed once for all nodes."""

    def __init__(self, call_tree: CallTree, rows: tuple[Ints, Ints]) -> None:
        place, figures = rows
        length, visits = len(call_tree.parent), sums.walk(call_tree.parent)
        columns = []
        for column in range(_FIGURES):
            own = sum_at(length, place, figures[:, column])
            columns.append(sums.sum_below(visits, own) if own.any() else own)
        self._key = call_tree.key
        self._totals = np.stack(columns, axis=1)
        held = np.flatnonzero((self._totals[:, 0] != 0) & call_tree.stands)
        held = held[held != 0]
        order = held[np.argsort(call_tree.parent[held], kind="stable")]
        self._children = order
        self._first = np.searchsorted(call_tree.parent[order], np.arange(length + 1)).tolist()
        self.start = _Group(np.zeros(1, np.int64), self._totals[:1])

    def below(self, group: _Group) -> list[tuple[int, _Group, Ints]]:
        parts = [self._children[self._first[node] : self._first[node + 1]] for node in group.nodes.tolist()]
        nodes = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return _by_key(self._key[nodes], nodes, self._totals[nodes])


class _Inverted:
    """From what asked for memory to its callers: the rows of the holdings move up together."""

    def __init__(self, call_tree: CallTree, rows: tuple[Ints, Ints]) -> None:
        self._call_tree = call_tree
        self.start = _Group(*rows)

    def below(self, group: _Group) -> list[tuple[int, _Group, Ints]]:
        nodes = group.nodes if group is self.start else self._call_tree.parent[group.nodes]
        further = np.flatnonzero(nodes)
        return _by_key(self._call_tree.key[nodes[further]], nodes[further], group.figures[further])


def _by_key(keys: Ints, nodes: Ints, figures: Ints) -> list[tuple[int, _Group, Ints]]:
    """Nodes of equal key together, with the sum of their figures."""
    if len(keys) == 0:
        return []
    if len(keys) == 1:  # nearly every call of a deep chain
        return [(int(keys[0]), _Group(nodes, figures), figures[0])]
    order = np.argsort(keys, kind="stable")
    keys, nodes, figures = keys[order], nodes[order], figures[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    added = np.add.reduceat(figures, starts, axis=0)
    ends = np.append(starts[1:], len(keys))
    return [
        (int(keys[first]), _Group(nodes[first:last], figures[first:last]), added[index])
        for index, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
    ]
