"""Finds: copy."""

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()  # HERE
    #: work = pixels
    return work.sum() / pixels.max()


main()
