"""Advice: findings of rules, each with a line of the user's own code, its evidence and the saving that a change is good
for.

A rule speaks only when the figures of the capture prove the saving; `docs/advice.md` says what each one reads. No rule
runs in the recorded program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hiwater.analysis.advice.finding import Figure, Finding, Rule, Saving
from hiwater.analysis.advice.recorded import Recorded
from hiwater.analysis.advice.rules import arenas, forked, malloc_trim, object_columns, untouched
from hiwater.capture import Capture

__all__ = ["MOST_FINDINGS", "Figure", "Finding", "Rule", "Saving", "findings_of"]

MOST_FINDINGS = 5
RULES: tuple[Callable[[Recorded], Iterator[Finding]], ...] = (
    object_columns, untouched, arenas, malloc_trim, forked,
)  # fmt: skip


def findings_of(capture: Capture) -> list[Finding]:
    """At most five findings, those with the largest sure saving first; none for the memory of a device, or for a
    process that was watched from outside. Each saves at least 5 % of the peak, and 1 MiB."""
    if capture.is_timeline or capture.device is not None:
        return []
    recorded = Recorded(capture)
    found = [
        finding
        for rule in RULES
        for finding in rule(recorded)
        if finding.saving.least_bytes >= recorded.least_worth(finding.saving.measures)
    ]
    return sorted(found, key=lambda one: -one.saving.least_bytes)[:MOST_FINDINGS]
