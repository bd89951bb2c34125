"""Finds: nothing."""

import time

import numpy as np


def main():
    pixels = np.ones(3_000_000)
    work = pixels.copy()
    found = work.sum() / pixels.max()
    del work
    time.sleep(0.1)
    more = np.ones(2_950_000)
    more *= 2
    time.sleep(0.1)
    return found, more.max(), pixels.max()


main()
