"""Finds: untouched."""

import numpy as np

table = np.zeros(4_000_000)  # HERE
#: table = np.zeros(100_000)
table[:100_000] = 1
print(table.shape)
