import dask.dataframe as dd
import numpy as np
import pandas as pd


def main():
    small = pd.DataFrame({"key": np.arange(1000) % 10, "value": np.arange(1000)})
    wide = dd.concat([dd.from_pandas(small, npartitions=2)] * 400)
    table = wide.assign(double=wide.value * 2.0, triple=wide.value * 3.0).compute()  # HERE
    print(len(table))


if __name__ == "__main__":
    main()
