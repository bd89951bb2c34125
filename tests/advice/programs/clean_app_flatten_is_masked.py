"""Finds: nothing."""

import numpy as np


def clipped(side):
    image = np.ones((side, side))
    flat = image.flatten()
    flat[flat > 0.5] = 0
    return flat.sum(), image.sum()


print(clipped(1_700))
