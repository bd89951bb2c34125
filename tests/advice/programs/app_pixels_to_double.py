"""Finds: float_width."""

import numpy as np


def contrast(width, height):
    pixels = np.zeros((height, width), dtype="uint8")
    values = pixels.astype(float)  # HERE
    #: values = pixels.astype("float32")
    return values.max() - values.min(), pixels.shape


print(contrast(2_000, 1_500))
