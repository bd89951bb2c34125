"""functools.lru_cache, full since its first calls, with new keys all the time."""

from functools import lru_cache

from noise import VALUES, text, work

_made = 0


@lru_cache(maxsize=64)
def load(key: int) -> str:
    return text()


def call() -> None:
    global _made
    work()
    for _ in range(VALUES):
        _made += 1
        load(_made)
