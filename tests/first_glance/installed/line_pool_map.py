import concurrent.futures

import numpy as np


def main():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        kept = list(pool.map(np.ones, [5_000_000] * 4))  # HERE
    print(len(kept))


if __name__ == "__main__":
    main()
