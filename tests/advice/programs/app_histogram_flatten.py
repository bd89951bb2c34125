"""Finds: copy."""

import numpy as np


def brightness(side):
    image = np.ones((side, side))
    flat = image.flatten()  # HERE
    #: flat = image.ravel()
    return flat.mean(), flat.std(), image.shape


for side in (500, 1_800):
    print(brightness(side))
