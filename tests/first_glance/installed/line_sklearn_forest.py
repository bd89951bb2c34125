import numpy as np
from sklearn.ensemble import RandomForestRegressor


def main():
    values = np.random.default_rng(1).random((20_000, 12))
    model = RandomForestRegressor(40, n_jobs=2, random_state=1)
    model.fit(values, values.sum(axis=1))  # HERE
    print(len(model.estimators_))


if __name__ == "__main__":
    main()
