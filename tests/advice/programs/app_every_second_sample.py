"""Finds: copy."""

import numpy as np


def loudness(seconds):
    signal = np.linspace(-1, 1, seconds * 44_100)
    thinned = signal[np.arange(0, signal.size, 2)]  # HERE
    #: thinned = signal[::2]
    return float(np.abs(thinned).max()), signal.mean()


print(loudness(60))
