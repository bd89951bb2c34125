"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(4_000_000, dtype=np.uint8)
    wide = pixels.astype(np.float64)
    wide[:2] = 1 / 3
    return wide.mean()


main()
