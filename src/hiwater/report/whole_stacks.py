"""What a format gets that writes every frame of every stack: such a report grows as depth × stacks, so it has a bound.

Stacks are written whole while their text is short, or while it is no longer on average than that of programs' stacks.
Above both bounds recursion is written once (see `analysis/recursion.py`), unless `--recursion` says otherwise; what is
too long even so is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiwater.analysis import recursion
from hiwater.analysis.call_tree import CallTree, build_call_tree
from hiwater.capture import Capture
from hiwater.capture.paths import Ints, sum_at
from hiwater.capture.snapshot import Holdings
from hiwater.errors import ReportTooLarge
from hiwater.report.formatting import size
from hiwater.report.request import Report

MOST_BYTES = 32 << 20
MOST_MEAN_BYTES = 16 << 10  # 256 frames


@dataclass(frozen=True, slots=True, eq=False)
class WholeStacks:
    """The call paths to write. `is_recursion_merged`: recursion is left out of them, so that several nodes may have
    one path."""

    capture: Capture
    call_tree: CallTree
    is_recursion_merged: bool

    def joined(self, node: Ints, kind: Ints, *columns: Ints) -> tuple[Ints, ...]:
        """(node, kind, columns…) with the rows of one path, kind and thread added up, where several may have one."""
        if not self.is_recursion_merged:
            return node, kind, *columns
        _, thread = self.capture.tables.paths.threads(node)
        rows = np.stack([self.call_tree.place[node], kind, thread], axis=1)
        _, first, back = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they come first
        added = (sum_at(len(first), back.ravel(), column)[order] for column in columns)
        return node[first[order]], kind[first[order]], *added

    def holdings(self, held: Holdings) -> Holdings:
        """The same for what a report shows: the largest first."""
        if not self.is_recursion_merged:
            return held
        node, kind, *figures = self.joined(held.node, held.kind, held.bytes, held.blocks, held.sampled)
        order = np.argsort(-figures[0], kind="stable")
        count, blocks, sampled = (figure[order] for figure in figures)
        return Holdings(node[order], kind[order], count, blocks, sampled, held.sample_bytes)


def whole_stacks(report: Report, nodes: Ints | None = None) -> WholeStacks:
    """The call paths of what the report shows, or of these nodes. Says in `report.remarks` what was left out. Raises
    ReportTooLarge."""
    asked = report.holdings.node if nodes is None else nodes
    call_tree = build_call_tree(report.capture.tables, report.grouping)
    leaves = call_tree.place[asked]
    fits = _fits(call_tree, leaves)
    if report.recursion == "whole" or (report.recursion == "auto" and fits):
        return WholeStacks(report.capture, call_tree, is_recursion_merged=False)
    whole = WholeStacks(report.capture, recursion.once(call_tree), is_recursion_merged=True)
    if not fits:
        whole_bytes = _text_bytes(call_tree, leaves)
        leaves = whole.call_tree.place[asked]
        if not _fits(whole.call_tree, leaves):
            raise ReportTooLarge(
                f"{report.capture.path}: its stacks are too deep to be written one by one: "
                f"{size(_text_bytes(whole.call_tree, leaves))}, even with recursion written once",
                "give --format json, html or svg, --by function or file, or --recursion whole to write all of it",
            )
        report.remarks.append(
            f"{report.capture.path}: written whole, its stacks would take {size(whole_bytes)}. Recursion is written"
            " once: a frame that calls itself, through others or not, stands for all its calls (--recursion whole"
            " writes each)"
        )
    return whole


def shaped(report: Report, call_tree: CallTree) -> CallTree:
    """The call paths for a tree: as they are, or with recursion once where that is asked for. An inverted tree is
    made from every frame of every stack, and has the same bounds as what is written from those."""
    may_be_large = report.recursion == "auto" and report.inverted
    is_large = may_be_large and not _fits(call_tree, call_tree.place[report.holdings.node])
    if report.recursion != "once" and not is_large:
        return call_tree
    if is_large:
        report.remarks.append(
            f"{report.capture.path}: recursion is shown once: a frame that calls itself, through others or not, stands"
            " for all its calls (--recursion whole shows each)"
        )
    return recursion.once(call_tree)


def _fits(call_tree: CallTree, leaves: Ints) -> bool:
    length = recursion.text_bytes(call_tree)[leaves]
    return int(length.max(initial=0)) <= MOST_BYTES and int(length.sum()) <= max(
        MOST_BYTES, MOST_MEAN_BYTES * len(leaves)
    )


def _text_bytes(call_tree: CallTree, leaves: Ints) -> int:
    return int(recursion.text_bytes(call_tree)[leaves].sum())
