"""Finds: float_width."""

import numpy as np


def main():
    pixels = np.ones(4_000_000, dtype=np.uint8)
    wide = pixels.astype(np.float64)  # HERE
    #: wide = pixels.astype(np.float32)
    return wide.mean()


main()
