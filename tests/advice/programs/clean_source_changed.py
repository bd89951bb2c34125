"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    before = np.array(pixels)
    pixels *= 2
    return before.sum() / pixels.max()


main()
