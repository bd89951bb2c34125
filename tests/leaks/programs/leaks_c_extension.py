"""A C extension that forgets to free the buffer of each call."""

import forgetful
from noise import SIZE, VALUES, work


def call() -> None:
    work()
    for _ in range(VALUES):
        forgetful.parse(SIZE)  # leak
