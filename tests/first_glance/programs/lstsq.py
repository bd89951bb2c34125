"""A fit that copies its matrix."""

import numpy


def fit(matrix, target):
    design = numpy.hstack([matrix, matrix**2, matrix**3])  # HERE
    return numpy.linalg.lstsq(design.T @ design, design.T @ target, rcond=None)[0]


def main():
    rng = numpy.random.default_rng(1)
    matrix = rng.random((100_000, 12))
    return fit(matrix, rng.random(100_000))


main()
