import lightgbm
import numpy as np


def main():
    values = np.random.default_rng(1).random((100_000, 50))
    data = lightgbm.Dataset(values, values[:, 0], free_raw_data=False)
    model = lightgbm.train({"verbose": -1, "num_threads": 2, "num_leaves": 255}, data, 3)  # HERE
    print(model.num_trees())


if __name__ == "__main__":
    main()
