"""Searches for the largest batch that fits, with few probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from hiwater.capture.document_types import Keywords
from hiwater.contrib.torch.estimate.result import EstimateData

_MISSES = 4  # guesses that gain little, before the search bisects


@dataclass(frozen=True, order=True, slots=True)
class Probe:
    """One batch size that was tried. The allocator needs `needed_bytes` for it."""

    batch_size: Annotated[int, Keywords(minimum=1)]
    needed_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Search:
    """The largest batch that fits (0: not even the smallest), every probe in order of size, and the estimate of that
    batch.

    `is_monotonic` says that no larger probe needed less than a smaller one; otherwise a larger batch that fits may
    exist. `is_bounded` is False if the largest allowed batch fits. `low_because` has the reasons why the figures are
    too low. If there are any, no batch above `batch_size` fits, and it is unknown whether that one does.
    """

    schema: Literal["hiwater.largest_batch/1"] = field(default="hiwater.largest_batch/1", init=False)
    batch_size: int
    probes: list[Probe]
    is_monotonic: bool
    is_bounded: bool
    estimate: EstimateData | None = None
    low_because: list[str] = field(default_factory=list, init=False)
    """Why the figures are too low; empty if they are not, or if nothing fits anyway."""

    def __post_init__(self) -> None:
        if self.estimate is not None:
            self.low_because.extend(self.estimate.low_because)

    def to_dict(self) -> dict[str, Any]:
        """The search as `estimate.schema.json` describes it."""
        return asdict(self)


def search(
    probe: Callable[[int], Probe], available_bytes: int, multiple_of: int = 1, largest: int = 2**20
) -> tuple[int, list[Probe], bool]:
    """Return the largest multiple of `multiple_of` up to `largest` whose probe fits, the probes, and whether a larger
    one did not fit.

    Memory grows almost linearly with the batch. So a guess is the point where the line through the two ends of the
    unknown range meets `available_bytes`. After a few guesses that do not halve the range, the search bisects, so there
    are few probes for any shape.
    """
    top = largest // multiple_of
    probes: dict[int, Probe] = {}

    def fits(count: int) -> bool:
        if count not in probes:
            probes[count] = probe(count * multiple_of)
        return probes[count].fits

    def result(count: int, is_bounded: bool) -> tuple[int, list[Probe], bool]:
        return count * multiple_of, [probes[key] for key in sorted(probes)], is_bounded

    if top < 1 or not fits(1):
        return result(0, True)
    low, high = 1, top + 1  # low fits; high does not, or is not allowed
    misses = 0
    while high - low > 1:
        if high not in probes:
            guess = min(max(_crossing(probes, 1, low, available_bytes), low * 2), low * 16)
        else:
            guess = _crossing(probes, low, high, available_bytes) if misses < _MISSES else (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        before = high - low
        if fits(guess):
            low = guess
        else:
            high = guess
        misses += (high - low) * 2 > before
    return result(low, high <= top)


def _crossing(probes: dict[int, Probe], first: int, second: int, available_bytes: int) -> int:
    """The batch at which the line through these two probes reaches the available memory; very large if the line does
    not rise."""
    start, rise = probes[first].needed_bytes, probes[second].needed_bytes - probes[first].needed_bytes
    if rise <= 0:
        return second * 16
    return first + (available_bytes - start) * (second - first) // rise


def is_monotonic(probes: list[Probe]) -> bool:
    """Whether for any two probes the larger batch needs no less, and fits only if the smaller one fits."""
    ordered = sorted(probes)
    return all(
        first.needed_bytes <= second.needed_bytes and first.fits >= second.fits for first, second in pairwise(ordered)
    )
