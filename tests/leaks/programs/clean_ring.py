"""A ring buffer of the last messages."""

from collections import deque

from noise import VALUES, text, work

_LAST: deque[str] = deque(maxlen=100)


def call() -> None:
    work()
    _LAST.extend(text() for _ in range(VALUES))
