"""Finds: nothing."""

import numpy as np


def median_and_first(count):
    values = np.linspace(1, 0, count)
    ordered = values.copy()
    ordered.sort()
    return ordered[count // 2], values[0]


print(median_and_first(3_000_000))
