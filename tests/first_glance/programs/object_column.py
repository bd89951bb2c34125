"""A frame with a column of strings as Python objects."""

import numpy
import pandas


def load(count):
    names = [f"customer number {number:08d}" for number in range(count)]  # HERE
    return pandas.DataFrame({"name": pandas.Series(names, dtype=object), "spent": numpy.arange(count) / 3})


def main():
    return load(400_000)["spent"].sum()


main()
