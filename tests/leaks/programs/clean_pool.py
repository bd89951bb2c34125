"""A pool of buffers that fills in the first calls and is then used again."""

from noise import SIZE, VALUES, draw, work

_FREE: list[bytearray] = []


def call() -> None:
    work()
    used = [_FREE.pop() if _FREE else bytearray(SIZE) for _ in range(draw.randrange(VALUES, 2 * VALUES))]
    for buffer in used:
        buffer[:] = bytes(SIZE)
    _FREE.extend(used)
