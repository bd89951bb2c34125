"""Finds: copy."""

import numpy as np


def main():
    pixels = np.arange(3_000_000)
    work = np.array(pixels)  # HERE
    #: work = np.asarray(pixels)
    print(work.max(), pixels[0])


main()
