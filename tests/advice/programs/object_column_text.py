"""Finds: object_column."""

import numpy as np
import pandas as pd

numbers = pd.Series(np.arange(250_000))
texts = numbers.astype(str)  # HERE
#: texts = numbers.copy()
print(len(texts))
