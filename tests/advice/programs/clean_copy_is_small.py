"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(6_000_000)
    few = pixels[:200_000].copy()
    return few.sum() / pixels.max()


main()
