"""Finds: copy."""

import numpy as np


def main():
    samples = np.ones(3_000_000)
    samples_as_float = samples.astype(np.float64)  # HERE
    #: samples_as_float = samples.astype(np.float64, copy=False)
    print(np.mean(samples_as_float), len(samples))


main()
