"""Finds: copy."""

import numpy as np


class Station:
    """Readings of one day, and their summary."""

    def __init__(self, name):
        self.name = name

    def summary(self):
        readings = np.linspace(-5.0, 30.0, 3_000_000)
        checked = readings.copy()  # HERE
        #: checked = readings
        warm = np.count_nonzero(checked > 20)
        return f"{self.name}: {readings.min():.1f} to {checked.max():.1f}, {warm} warm"


print(Station("north").summary())
