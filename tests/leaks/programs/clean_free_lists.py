"""Floats, tuples, lists, dicts and frames that go back to the interpreter's free lists."""

from noise import draw, work


def depth(left: int) -> int:
    return 0 if left == 0 else 1 + depth(left - 1)


def call() -> None:
    work()
    rows = [(float(number), [number], {number: number}) for number in range(draw.randrange(1000, 3000))]
    depth(draw.randrange(50, 150))
    rows.clear()
