"""A cache without a bound: each request has a key of its own."""

from noise import VALUES, text, work

_CACHE: dict[int, str] = {}


def call() -> None:
    work()
    for _ in range(VALUES):
        key = len(_CACHE)
        _CACHE[key] = text()  # leak
