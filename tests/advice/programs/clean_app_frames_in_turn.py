"""Finds: nothing."""

import numpy as np


def simulate(steps):
    field = np.ones((1_500, 1_500))
    change = 0.0
    for _ in range(steps):
        before = field.copy()
        field *= 0.5
        change += np.abs(before - field).max()
    return change


print(simulate(3))
