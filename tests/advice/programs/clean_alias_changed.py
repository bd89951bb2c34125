"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()
    other = work
    other[0] = 7
    return work.sum() / pixels.max()


main()
