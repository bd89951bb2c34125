import numpy as np
import zarr


def main():
    stored = zarr.create_array(store=zarr.storage.MemoryStore(), shape=(6_000_000,), chunks=(500_000,), dtype="f8")
    for first in range(0, 6_000_000, 500_000):
        stored[first : first + 500_000] = np.zeros(500_000)
    values = stored[:]  # HERE
    print(values.sum())


if __name__ == "__main__":
    main()
