"""A buffer that is far too large, of which a corner is used."""

import numpy


def main():
    buffer = numpy.zeros(400_000_000, numpy.uint8)  # HERE
    buffer[:1000] = 1
    return buffer[:2000].sum()


main()
