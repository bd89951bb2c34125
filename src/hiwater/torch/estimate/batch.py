"""Searches for the largest batch that fits, with few probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hiwater.torch.estimate.result import Estimate

SCHEMA = "hiwater.largest_batch/1"


class Probe(NamedTuple):
    """One batch size that was tried. `needed_bytes` is what the allocator must get for it."""

    batch_size: int
    needed_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Search:
    """The largest batch that fits (0: not even the smallest), every probe in order of size, and the estimate of that batch.

    `is_monotonic` says whether more never needed less among the probes; where it did, a larger batch that fits may exist.
    `is_bounded` is False when the largest batch allowed still fitted.
    """

    batch_size: int
    probes: list[Probe]
    is_monotonic: bool
    is_bounded: bool
    estimate: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """The search as `estimate.schema.json` describes it."""
        data = asdict(self)
        data["probes"] = [probe._asdict() for probe in self.probes]
        data["estimate"] = self.estimate.to_dict() if self.estimate is not None else None
        return {"schema": SCHEMA, **data}


def search(
    probe: Callable[[int], Probe], available_bytes: int, multiple_of: int = 1, largest: int = 2**20
) -> tuple[int, list[Probe], bool]:
    """Return the largest multiple of `multiple_of` up to `largest` whose probe fits, the probes, and whether there was an end.

    Memory grows with the batch about in a straight line, so each guess is where the line through the two nearest probes
    meets `available_bytes`; a guess that gains little is followed by one in the middle, so the probes are few for any shape.
    """
    top = largest // multiple_of
    probes: dict[int, Probe] = {}

    def fits(count: int) -> bool:
        if count not in probes:
            probes[count] = probe(count * multiple_of)
        return probes[count].fits

    def told(count: int, is_bounded: bool) -> tuple[int, list[Probe], bool]:
        return count * multiple_of, [probes[key] for key in sorted(probes)], is_bounded

    if top < 1 or not fits(1):
        return told(0, True)
    low, high = 1, top + 1  # low fits; high does not, or is not allowed
    is_guess_due = True
    while high - low > 1:
        guess = _crossing(probes, low, available_bytes) if is_guess_due else _middle(low, high, high in probes)
        guess = min(max(guess, low + 1), high - 1)
        before = high - low
        if fits(guess):
            low = guess
        else:
            high = guess
        is_guess_due = not is_guess_due or (high - low) * 2 <= before
    return told(low, high <= top)


def _crossing(probes: dict[int, Probe], low: int, available_bytes: int) -> int:
    """Where the line through the probes at `low` and next to it says that memory ends."""
    others = [count for count in probes if count != low]
    if not others:
        return low + 1
    other = min(others, key=lambda count: abs(count - low))
    slope = (probes[low].needed_bytes - probes[other].needed_bytes) / (low - other)
    if slope <= 0:
        return low * 2
    return low + int((available_bytes - probes[low].needed_bytes) / slope)


def _middle(low: int, high: int, is_end_known: bool) -> int:
    """Halfway, or twice as far while no batch that is too large is known."""
    return (low + high) // 2 if is_end_known else low * 2


def is_monotonic(probes: list[Probe]) -> bool:
    """Whether of any two probes the larger batch needs no less, and fits only if the smaller one does."""
    ordered = sorted(probes)
    return all(
        first.needed_bytes <= second.needed_bytes and first.fits >= second.fits
        for first, second in zip(ordered, ordered[1:], strict=False)
    )
