"""Group-by, aggregation and merge over half a million rows with a column of strings."""

import numpy as np
import pandas as pd


def make_table(rows: int) -> pd.DataFrame:
    values = np.random.default_rng(1).random(rows)
    return pd.DataFrame({"k": np.arange(rows) % 1000, "v": values, "s": [f"u{row % 5000}" for row in range(rows)]})


def main() -> None:
    table = make_table(500_000)
    for _ in range(5):
        means = table.groupby("k")["v"].mean()
        sums = table.groupby("s")["v"].agg(["sum", "max"])
        merged = table.merge(sums.reset_index(), on="s")
    print(len(merged), means.sum())


main()
