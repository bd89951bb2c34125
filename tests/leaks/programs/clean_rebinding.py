"""A variable that is bound to a larger value in each call: the one before is freed."""

from noise import SIZE, VALUES, text, work

_latest: list[str] = []
_calls = 0


def call() -> None:
    global _latest, _calls
    work()
    _calls += 1
    _latest = [text(SIZE) for _ in range(VALUES * _calls)]
