"""Finds: nothing."""

import numpy as np


def main():
    numbers = np.arange(3_000_000, dtype=np.int64)
    wide = numbers.astype(np.float64)
    print(wide.mean(), numbers.max())


main()
