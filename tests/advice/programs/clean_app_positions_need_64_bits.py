"""Finds: nothing."""

import numpy as np


def distances(count):
    ticks = np.arange(count, dtype=np.int64)
    seconds = ticks.astype(np.float64)
    return float((seconds / 1e9).max())


print(distances(3_000_000))
