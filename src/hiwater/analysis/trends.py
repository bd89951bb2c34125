"""Whether a series rises, and by how much: the Mann–Kendall trend test, the Theil–Sen slope, and Holm's correction for
many tests.

Sources: H. B. Mann, Econometrica 13 (1945); M. G. Kendall, Rank Correlation Methods (1975), for the variance with ties;
P. K. Sen, JASA 63 (1968), for the slope's bound; S. Holm, Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

MOST_EXACT = 10
"""Up to so many values the distribution of the statistic is computed exactly, above it is taken as normal."""

Floats = npt.NDArray[np.float64]


def rising_p(values: Sequence[int]) -> float:
    """The one-sided p-value of the Mann–Kendall test: how probable a trend as steep upwards would be if the order of
    `values` meant nothing.

    1.0 for fewer than two values. Ties are allowed.
    """
    column = np.asarray(values, np.int64)
    ties = tuple(sorted(np.unique(column, return_counts=True)[1].tolist()))
    score = _score(column)
    if len(ties) < 2:
        return 1.0
    if len(column) <= MOST_EXACT:
        return _exact_tail(ties, score)
    return 1 - NormalDist().cdf((score - 1) / math.sqrt(_variance(ties))) if score > 0 else 1.0


def smallest_p(count: int) -> float:
    """The smallest p-value that `count` values can have: that of values each above the one before."""
    return rising_p(range(count))


def slope(at: Sequence[int], values: Sequence[int], p: float) -> tuple[float, float]:
    """The Theil–Sen slope of `values` over `at` (ascending), the median of the slopes of all pairs, and its lower
    bound, below which the true slope is with probability `p` at most (Sen's normal approximation)."""
    x, y = np.asarray(at, np.float64), np.asarray(values, np.float64)
    first, second = np.triu_indices(len(x), 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    if len(slopes) == 0:
        return 0.0, 0.0
    ties = tuple(np.unique(y, return_counts=True)[1].tolist())
    width = NormalDist().inv_cdf(1 - p) * math.sqrt(_variance(ties))
    rank = math.floor((len(slopes) - width) / 2)
    lower = float(slopes[rank]) if rank >= 0 else -math.inf
    return float(np.median(slopes)), lower


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """For each of these p-values, whether its test rejects at `level` for all of them together."""
    rejected = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    for rank, number in enumerate(order):
        if p_values[number] * (len(p_values) - rank) >= level:
            break
        rejected[number] = True
    return rejected


def _score(column: npt.NDArray[np.int64]) -> int:
    """Pairs that rise minus pairs that fall."""
    return int(sum(np.sign(column[place + 1 :] - column[place]).sum() for place in range(len(column) - 1)))


def _variance(ties: Sequence[int]) -> float:
    """The variance of the score if every order is equally probable. `ties` are the sizes of the groups of equal
    values."""
    return sum(sign * n * (n - 1) * (2 * n + 5) for sign, n in ((1, sum(ties)), *((-1, tie) for tie in ties))) / 18


def _exact_tail(ties: tuple[int, ...], score: int) -> float:
    counts = _inversions(ties)
    unequal = len(counts) - 1
    most_inversions = (unequal - score) // 2
    return sum(counts[: most_inversions + 1]) / sum(counts)


@lru_cache(maxsize=256)
def _inversions(ties: tuple[int, ...]) -> tuple[int, ...]:
    """How many orders of values with these ties have 0, 1, 2 … inversions: the coefficients of the Gaussian
    multinomial."""
    counts = [1]
    for factor in range(1, sum(ties) + 1):
        counts = [sum(counts[max(0, at - factor + 1) : at + 1]) for at in range(len(counts) + factor - 1)]
    for tie in ties:
        for factor in range(1, tie + 1):
            counts = _divided(counts, factor)
    return tuple(counts)


def _divided(counts: list[int], factor: int) -> list[int]:
    """The polynomial divided by 1 + q + … + q^(factor - 1), which divides it."""
    quotient: list[int] = []
    for at in range(len(counts) - factor + 1):
        quotient.append(counts[at] - sum(quotient[max(0, at - factor + 1) : at]))
    return quotient
