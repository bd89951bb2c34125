"""Reads the nested statistics of libraries: their names have parts joined with dots. Totals are corrected for the
program's resets: torch's `reset_accumulated_memory_stats()` resets all totals of a device to 0."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


def flat_name(key: object) -> str:
    """A key of nested statistics as text for a flat name, in the form of `torch.cuda.memory_stats()`: `0_1` for the
    private pool `(0, 1)`."""
    return "_".join(map(str, key)) if isinstance(key, tuple) else str(key)


def leaves(nested: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, int]]:
    """The integers in nested mappings of any depth, by their keys joined with dots. Other values are skipped.

    The names of torch's statistics have one to four parts, which differ between versions.
    """
    for key, value in nested.items():
        path = f"{before}.{flat_name(key)}" if before else flat_name(key)
        if isinstance(value, dict):
            yield from leaves(value, path)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield path, value


def currents_and_peaks(nested: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(now, peak) of the statistics in nested mappings that have both, by the keys above them joined with dots.

    Runs twice for each scope, so the two usual levels of torch are loops here, and only deeper levels recurse.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, pools in nested.items():
        if pools.__class__ is not dict:
            continue
        if "peak" in pools:
            found[name] = pools["current"], pools["peak"]
            continue
        for pool, figures in pools.items():
            if figures.__class__ is not dict:
                continue
            if "peak" in figures:
                found[f"{name}.{pool}"] = figures["current"], figures["peak"]
            else:
                found |= {
                    f"{name}.{flat_name(pool)}.{deeper}": both for deeper, both in currents_and_peaks(figures).items()
                }
    return found


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
