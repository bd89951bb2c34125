"""Totals that a library counts up (bytes allocated so far, refusals so far), as they would be had the program not started them anew.

torch's `reset_accumulated_memory_stats()` puts all of a device's back to 0.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def is_total(name: str) -> bool:
    """Whether a statistic only counts up, so that what happened in a stretch is what it added."""
    return name.rpartition(".")[2] in ("allocated", "freed") or name.startswith("num_")


class RunningTotals:
    """The totals of one device."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        """What had been counted whenever they were started anew."""

    def lift(self, flat: dict[str, int]) -> dict[str, int]:
        """The statistics of a reading, with totals as though they had never been started anew; the same object where they were not."""
        if not self._before:
            return flat
        return flat | {name: flat[name] + value for name, value in self._before.items() if name in flat}

    def start_anew(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """The totals were put back: statistics from just before and just after."""
        lost = {name: value - after.get(name, 0) for name, value in before.items() if is_total(name)}
        self._before = {name: self._before.get(name, 0) + value for name, value in lost.items()}
