"""Finds: copy."""

import numpy as np
import pandas as pd


def main():
    table = pd.DataFrame(np.ones((1_500_000, 4)), copy=False)
    work = table.copy()  # HERE
    #: work = table
    print(work.sum(), table.shape)


main()
