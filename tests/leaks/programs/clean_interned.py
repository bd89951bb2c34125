"""Strings that are interned again and again: the same few thousand."""

import sys

from noise import draw, work


def call() -> None:
    work()
    for _ in range(2000):
        sys.intern(f"name of a column, number {draw.randrange(3000)}")
