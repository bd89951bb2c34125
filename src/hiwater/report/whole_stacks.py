"""What a format gets that writes every frame of every stack: such a report grows as depth × stacks, so it has a bound.

Stacks are written whole while their text is short, or while they are no deeper on average than programs' stacks are. Above both
bounds recursion is written once (see `analysis/recursion.py`), unless `--recursion` says otherwise; what is too long even so is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hiwater.analysis import recursion
from hiwater.analysis.call_tree import Forest, plant
from hiwater.analysis.sums import sum_at
from hiwater.capture import Capture
from hiwater.capture.snapshot import Holdings, Ints
from hiwater.errors import ReportTooLarge
from hiwater.report.formatting import size
from hiwater.report.request import Report

MOST_BYTES = 32 << 20
MOST_MEAN_FRAMES = 256


@dataclass(frozen=True, slots=True, eq=False)
class WholeStacks:
    """The call paths to write. `is_folded`: recursion is left out of them, so that several nodes may have one path."""

    capture: Capture
    forest: Forest
    is_folded: bool

    def joined(self, node: Ints, kind: Ints, *columns: Ints) -> tuple[Ints, ...]:
        """(node, kind, columns…) with the rows of one path, kind and thread added up, where several may have one."""
        if not self.is_folded:
            return node, kind, *columns
        _, thread = self.capture.paths.threads(node)
        rows = np.stack([self.forest.place[node], kind, thread], axis=1)
        _, first, back = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they come first
        added = (sum_at(len(first), back.ravel(), column)[order] for column in columns)
        return node[first[order]], kind[first[order]], *added

    def holdings(self, held: Holdings) -> Holdings:
        """The same for what a report shows: the largest first."""
        if not self.is_folded:
            return held
        node, kind, *figures = self.joined(held.node, held.kind, held.bytes, held.blocks, held.sampled)
        order = np.argsort(-figures[0], kind="stable")
        count, blocks, sampled = (figure[order] for figure in figures)
        return Holdings(node[order], kind[order], count, blocks, sampled, held.sample_bytes)


def whole_stacks(report: Report, nodes: Ints | None = None) -> WholeStacks:
    """The call paths of what the report shows, or of these nodes. Says in `report.remarks` what was left out. Raises ReportTooLarge."""
    asked = report.holdings.node if nodes is None else nodes
    forest = plant(report.capture, report.grouping)
    leaves = forest.place[asked]
    fits = _fits(forest, leaves)
    if report.recursion == "whole" or (report.recursion == "auto" and fits):
        return WholeStacks(report.capture, forest, is_folded=False)
    whole = WholeStacks(report.capture, recursion.once(forest), is_folded=True)
    if not fits:
        whole_bytes = recursion.text_bytes(forest, leaves)
        leaves = whole.forest.place[asked]
        if not _fits(whole.forest, leaves):
            raise ReportTooLarge(
                f"{report.capture.path}: its stacks are too deep to be written one by one: "
                f"{size(recursion.text_bytes(whole.forest, leaves))}, even with recursion written once",
                "give --format json, html or svg, --by function or file, or --recursion whole to write all of it",
            )
        report.remarks.append(
            f"{report.capture.path}: written whole, its stacks would take {size(whole_bytes)}. Recursion is written once: "
            "a frame that calls itself, through others or not, stands for all its calls (--recursion whole writes each)"
        )
    return whole


def shaped(report: Report, forest: Forest) -> Forest:
    """The call paths for a tree: as they are, or with recursion once where that is asked for. An inverted tree is made from every frame
    of every stack, and has the same bounds as what is written from those."""
    is_large = report.recursion == "auto" and report.inverted and not _fits(forest, forest.place[report.holdings.node])
    if report.recursion != "once" and not is_large:
        return forest
    if is_large:
        report.remarks.append(
            f"{report.capture.path}: recursion is shown once: a frame that calls itself, through others or not, stands for all "
            "its calls (--recursion whole shows each)"
        )
    return recursion.once(forest)


def _fits(forest: Forest, leaves: Ints) -> bool:
    frames = recursion.frames_of(forest, leaves)
    return frames <= MOST_MEAN_FRAMES * len(leaves) or recursion.text_bytes(forest, leaves) <= MOST_BYTES
