"""Totals that a library counts (bytes allocated so far, refused allocations so far), corrected for the program's
resets.

torch's `reset_accumulated_memory_stats()` resets all totals of a device to 0.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def is_total(name: str) -> bool:
    """Whether a statistic only counts up, so that the difference of two readings is the amount in between."""
    return name.rpartition(".")[2] in ("allocated", "freed") or name.startswith("num_")


class RunningTotals:
    """The totals of one device."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        """The sum of the totals before each reset."""

    def lift(self, flat: dict[str, int]) -> dict[str, int]:
        """The statistics of a reading, with totals as without the program's resets; the same object if there was no
        reset."""
        if not self._before:
            return flat
        return flat | {name: flat[name] + value for name, value in self._before.items() if name in flat}

    def program_reset(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """The program has reset the totals; `before` and `after` are the statistics around the reset."""
        lost = {name: value - after.get(name, 0) for name, value in before.items() if is_total(name)}
        self._before = {name: self._before.get(name, 0) + value for name, value in lost.items()}
