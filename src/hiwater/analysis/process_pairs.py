"""Pairs of processes of two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hiwater.capture import Capture


def pairs(before: Sequence[Capture], after: Sequence[Capture]) -> list[tuple[Capture, Capture]]:
    """Pairs of processes of two runs: by equal rank and program, then by the order of their starts.

    Two single processes are a pair, whatever their names are.
    """
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    named = [_by_role(captures) for captures in (before, after)]
    return [(capture, named[1][role]) for role, capture in named[0].items() if role in named[1]]


def _by_role(captures: Sequence[Capture]) -> dict[tuple[str, str, int], Capture]:
    found: dict[tuple[str, str, int], Capture] = {}
    known = Counter[tuple[str, str]]()
    for capture in sorted(captures, key=lambda one: (one.process.started_unix_ns, one.process.pid)):
        program = capture.process.argv[0].rsplit("/", 1)[-1] if capture.process.argv else ""
        program = capture.device or program
        rank = capture.facts.get("rank", "")
        found[rank, program, known[rank, program]] = capture
        known[rank, program] += 1
    return found
