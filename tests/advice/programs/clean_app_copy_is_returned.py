"""Finds: nothing."""

import numpy as np


def load(count):
    table = np.ones(count)
    result = table.copy()
    print(table.sum())
    return result


loaded = load(3_000_000)
loaded[0] = 4
