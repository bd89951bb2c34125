"""Finds: nothing."""

import numpy as np
import pandas as pd

table = pd.DataFrame({"a": np.arange(60_000) * 1000, "b": np.arange(60_000) / 7})
rows = table.to_dict("records")
print(len(rows))
