"""Finds: nothing."""

import io

import pandas as pd

rows = "\n".join(f"town {number % 40},{number % 90}" for number in range(200_000))
table = pd.read_csv(io.StringIO(f"town,age\n{rows}\n"), dtype={"town": "category"})
print(table["age"].mean())
