"""Finds: arenas."""

import time


def main():
    #: kept = [(number, str(number)) for number in range(0, 150_000, 2500)]
    rows = [(number, str(number)) for number in range(150_000)]  # HERE
    #: rows = [(number, str(number)) for number in range(150_000)]
    #: return kept
    return rows[::2500]


kept = main()
time.sleep(0.1)
