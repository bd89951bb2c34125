"""Group, merge, and keep what a smaller table would do."""

import numpy
import pandas


def load(count):
    return pandas.DataFrame({"key": numpy.arange(count) % 1000, "value": numpy.arange(count) / 3})


def widen(frame):
    means = frame.groupby("key")["value"].agg(["sum", "max"]).reset_index()
    return frame.merge(means, on="key")  # HERE


def main():
    return len(widen(load(1_000_000)))


main()
