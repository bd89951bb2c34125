"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()
    first = work[:10]
    first += 1
    return work.sum() / pixels.max()


main()
