"""Finds: copy."""

import numpy as np


def main():
    table = np.ones((1000, 3000))
    total = table.flatten().sum()  # HERE
    #: total = table.ravel().sum()
    print(total, table.shape)


main()
