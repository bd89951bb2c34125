"""The statistics of `hiwater leaks`, against counting every order, against tables in print, and against their
definitions."""

import itertools
import math
import random
import statistics

import numpy as np
import pytest

from hiwater.analysis import trends
from recording import rounds


def score(values: tuple[int, ...]) -> int:
    return sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))


def test_p_of_few_values_is_the_share_of_all_orders_that_rise_as_much() -> None:
    trace = random.Random(1)
    for _ in range(rounds(60)):
        values = tuple(trace.randrange(4) for _ in range(trace.randrange(2, 8)))
        orders = [score(order) for order in itertools.permutations(values)]
        expected = 1.0 if len(set(values)) == 1 else sum(one >= score(values) for one in orders) / len(orders)
        assert trends.rising_p(values) == pytest.approx(expected), values


# Kendall's table of the tail of S, without ties.
@pytest.mark.parametrize(
    ("values", "tail"),
    [((1, 2, 3, 4), 1 / 24), ((2, 1, 3, 4), 4 / 24), ((1, 2, 4, 3, 5), 5 / 120),
        (tuple(range(10)), 1 / math.factorial(10))],
)  # fmt: skip
def test_p_is_that_of_the_table(values: tuple[int, ...], tail: float) -> None:
    assert trends.rising_p(values) == pytest.approx(tail)


def test_p_of_many_values_is_near_the_share_of_random_orders() -> None:
    trace = random.Random(2)
    values = [trace.randrange(8) + number // 6 for number in range(14)]
    own, orders = score(tuple(values)), 4000
    as_high = sum(score(tuple(trace.sample(values, len(values)))) >= own for _ in range(orders))
    expected = as_high / orders
    # Four standard errors of the share, and the error of the normal approximation at this length.
    assert trends.rising_p(values) == pytest.approx(expected, abs=4 * math.sqrt(expected / orders) + 0.005)


def test_the_exact_and_the_normal_p_meet() -> None:
    values = [0, 2, 1, 4, 3, 6, 5, 8, 7, 9]
    exact, normal = trends.rising_p(values), trends.rising_p([*values, 10])
    assert normal < exact < 1e-3


def test_equal_and_single_values_have_no_trend() -> None:
    assert trends.rising_p([]) == trends.rising_p([3]) == trends.rising_p([3] * 8) == trends.rising_p([3] * 40) == 1.0
    assert trends.rising_p(range(20, 0, -1)) == 1.0


def test_slope_is_the_median_of_all_pairs() -> None:
    trace = random.Random(3)
    for _ in range(rounds(40)):
        at = sorted(trace.sample(range(100), trace.randrange(2, 20)))
        values = [trace.randrange(1000) for _ in at]
        pairs = [(d - c) / (b - a) for (a, c), (b, d) in itertools.combinations(zip(at, values, strict=True), 2)]
        slope, lower = trends.slope(at, values, 0.001)
        assert slope == pytest.approx(statistics.median(pairs))
        assert lower == -math.inf or lower in np.array(pairs)
        assert lower <= slope


def test_the_bound_of_a_straight_line_is_its_slope_and_that_of_noise_is_not_above_zero() -> None:
    assert trends.slope(range(20), [7 * number for number in range(20)], 0.001) == (7, 7)
    trace = random.Random(4)
    above = sum(trends.slope(range(20), [trace.randrange(1000) for _ in range(20)], 0.001)[1] > 0 for _ in range(500))
    assert above <= 4  # half of one is expected


def test_holm_stops_at_the_first_test_that_is_not_significant() -> None:
    assert trends.holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert trends.holm([], 0.05) == []


def test_holm_rejects_nothing_more_than_single_tests_and_nothing_less_than_bonferroni() -> None:
    trace = random.Random(5)
    for _ in range(rounds(200)):
        p_values = [trace.random() ** 4 for _ in range(trace.randrange(1, 12))]
        for p, is_rejected in zip(p_values, trends.holm(p_values, 0.05), strict=True):
            assert not is_rejected or p < 0.05
            assert is_rejected or p * len(p_values) >= 0.05
