import io

import h5py
import numpy as np


def main():
    with h5py.File(io.BytesIO(), "w") as file:
        stored = file.create_dataset("d", (6_000_000,), chunks=(100_000,), compression="gzip", dtype="f8")
        for first in range(0, 6_000_000, 1_000_000):
            stored[first : first + 1_000_000] = np.zeros(1_000_000)
        values = stored[:] * 1.0  # HERE
        print(values.sum())


if __name__ == "__main__":
    main()
