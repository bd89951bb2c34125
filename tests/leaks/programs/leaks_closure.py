"""Callbacks that are never run keep what they closed over."""

from collections.abc import Callable

from noise import VALUES, text, work

_LATER: list[Callable[[], int]] = []


def make(payload: str) -> Callable[[], int]:
    return lambda: len(payload)


def call() -> None:
    work()
    for _ in range(VALUES):
        payload = text()  # leak
        _LATER.append(make(payload))
