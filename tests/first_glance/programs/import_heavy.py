"""A small command that imports a large package for one call."""

import sys

import pandas  # HERE


def main():
    print(pandas.Timestamp("2024-02-29").dayofyear, file=sys.stderr)


main()
