"""Finds: copy."""

import numpy as np


def main():
    samples = np.ones(4_000_000)
    later = samples[np.arange(1_000_000, 4_000_000)]  # HERE
    #: later = samples[1_000_000:4_000_000]
    print(later.sum(), samples.sum())


main()
