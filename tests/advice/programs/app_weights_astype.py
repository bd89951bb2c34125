"""Finds: copy."""

import numpy as np


def score(features):
    weights = np.ones(features, dtype=np.float32)
    typed = weights.astype("float32")  # HERE
    #: typed = weights
    return float(np.dot(typed, weights))


print(score(5_000_000))
