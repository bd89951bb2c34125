import dask
import numpy as np


def main():
    parts = [dask.delayed(np.ones)(4_000_000) for _ in range(4)]
    values = dask.compute(*parts, scheduler="threads")  # HERE
    print(len(values))


if __name__ == "__main__":
    main()
