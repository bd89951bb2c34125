"""Finds: arenas. No object stays: the interpreter's free list of floats keeps the arenas."""

import time

import numpy as np


def total():
    #: values = np.sort((np.arange(600_000) * 7919 % 600_007).astype(float))
    values = sorted(float(number * 7919 % 600_007) for number in range(600_000))  # HERE
    return float(np.sum(values[::2]))


print(total())
time.sleep(0.3)
