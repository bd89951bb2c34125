"""Finds: nothing."""

import numpy as np

table = np.zeros(4_000_000)
table += 1
print(table.shape)
