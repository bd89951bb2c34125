"""Features that are made whole where a pipeline over parts of the rows would do."""

import numpy
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import PolynomialFeatures


def widen(rows):
    return PolynomialFeatures(3).fit_transform(rows)  # HERE


def main():
    rows = numpy.random.default_rng(0).random((30_000, 12))
    is_large = rows.sum(axis=1) > 6
    model = LogisticRegression(max_iter=5).fit(widen(rows)[:, :40], is_large)
    return model.coef_.shape


main()
