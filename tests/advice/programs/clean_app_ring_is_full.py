"""Finds: nothing."""

import numpy as np


class Ring:
    def __init__(self, size):
        self.values = np.zeros(size)
        self.place = 0

    def add(self, part):
        end = self.place + len(part)
        self.values[self.place : end] = part
        self.place = end % len(self.values)


ring = Ring(3_000_000)
for _ in range(30):
    ring.add(np.ones(100_000))
print(ring.values.mean())
