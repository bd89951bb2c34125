"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()
    work[0] = 5
    return work.sum() / pixels.max()


main()
