"""A list of small numbers that grows in steps, as lists do, and starts anew when it is long."""

from noise import VALUES, draw, work

_counts: list[int] = []


def call() -> None:
    global _counts
    work()
    for _ in range(VALUES * 100):
        _counts.append(draw.randrange(200))
    if len(_counts) > VALUES * 2000:
        _counts = []
