"""Finds: nothing."""

import numpy as np


def main():
    numbers = np.arange(4_000_000, dtype=np.int32)
    wide = numbers.astype(float)
    return wide.mean()


main()
