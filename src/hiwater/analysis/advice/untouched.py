"""Memory that was allocated and never written to: reservations, and the unused ends of containers that grew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hiwater.analysis.advice.finding import ALLOCATED, Figure, Finding, Rule, Saving
from hiwater.analysis.advice.recorded import Bools, Recorded

_MANY_TIMES = 16  # so often a container was allocated anew while it grew
_ASKED_FOR = (
    "",
    "numpy",
)  # whose blocks have the size that the line asked for; buffers inside other libraries are their own affair
_CONDITION = "Leave it if the program reads the zeros there, or needs the room at other times: it takes no RAM."
_MEASURED = "allocated and in no residency snapshot in RAM, exact to a page"


def untouched(recorded: Recorded) -> Iterator[Finding]:
    """A line whose large blocks were never wholly in RAM. A container that grew step by step has a rule of its own."""
    if not recorded.never_touched or recorded.capture.process.ended != "exit":
        return
    is_asked_for = np.isin(recorded.library, _ASKED_FOR)
    for frame, accounts in recorded.rows(recorded.counted & is_asked_for):
        unused = _never_touched(recorded, accounts)
        if not unused:
            continue
        held = recorded.at_peak(accounts)
        has_grown = _has_grown(recorded, accounts)
        evidence = (
            recorded.figure("capacity" if has_grown else "allocated", held, "at the peak"),
            Figure("never touched", unused, "bytes", _MEASURED),
        )
        bound = recorded.saved_at_peak(accounts, min(1.0, unused / max(1, held)))
        saving = Saving(min(unused, bound.least_bytes), unused, ALLOCATED)
        if has_grown:
            change = "Give the container its final size from the start, or build it from an iterator of known length."
            yield Finding(Rule.over_allocated, frame, evidence, saving, change)
        else:
            yield Finding(Rule.untouched, frame, evidence, saving, "Allocate only what is used.", _CONDITION)


def _never_touched(recorded: Recorded, accounts: Bools) -> int:
    """The bytes of these accounts that no residency snapshot saw in RAM, of blocks that are live at the end: the
    snapshot there has seen them after the program's last write."""
    held = np.minimum(recorded.peak.bytes, recorded.end.bytes)
    nodes = set(recorded.node[accounts].tolist())
    return sum(
        min(unused, max(0, int(held[accounts & (recorded.node == node)].sum())))
        for node, unused in recorded.never_touched.items()
        if node in nodes
    )


def _has_grown(recorded: Recorded, accounts: Bools) -> bool:
    """Whether these are containers of Python's that were allocated anew again and again, each time larger."""
    grown = accounts & (recorded.library == "") & recorded.is_kind("python")
    grown &= recorded.total_blocks >= _MANY_TIMES * np.maximum(recorded.peak.blocks, 1)
    grown &= recorded.total_bytes >= 3 * recorded.peak.bytes
    return recorded.at_peak(grown) * 2 > recorded.at_peak(accounts)
