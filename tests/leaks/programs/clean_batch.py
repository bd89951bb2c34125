"""A batch grows for some calls and is then written and cleared."""

from noise import VALUES, text, work

_BATCH: list[str] = []
_calls = 0


def call() -> None:
    global _calls
    work()
    _calls += 1
    _BATCH.extend(text() for _ in range(VALUES))
    if _calls % 7 == 0:
        _BATCH.clear()
