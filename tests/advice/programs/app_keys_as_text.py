"""Finds: object_column."""

import numpy as np
import pandas as pd


def labels(count):
    sales = pd.DataFrame({"shop": np.arange(count) * 1_009})
    sales["label"] = sales["shop"].astype(object).astype(str)  # HERE
    return len(sales)


print(labels(300_000))
