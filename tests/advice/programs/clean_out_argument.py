"""Finds: nothing."""

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()
    np.sqrt(pixels, out=work)
    return work.sum() / pixels.max()


main()
