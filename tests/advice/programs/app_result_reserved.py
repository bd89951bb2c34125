"""Finds: untouched."""

import numpy as np


class Results:
    """Room for the hits of a search, as many as there may be at worst."""

    def __init__(self, most):
        self.rows = np.empty((most, 4))  # HERE
        #: self.rows = np.empty((20_000, 4))
        self.count = 0

    def add(self, row):
        self.rows[self.count] = row
        self.count += 1


results = Results(1_500_000)
for number in range(10_000):
    results.add((number, 1, 2, 3))
print(results.count)
