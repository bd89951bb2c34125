"""Finds: nothing."""

import numpy as np


def shuffled(values):
    values.sort()
    return values


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()
    return shuffled(work).sum() / pixels.max()


main()
