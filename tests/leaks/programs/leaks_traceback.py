"""Exceptions are kept for a summary: their tracebacks keep the frames with all local variables."""

from noise import VALUES, text, work

_FAILURES: list[Exception] = []


def parse() -> None:
    document = text()  # leak
    raise ValueError(len(document))


def call() -> None:
    work()
    for _ in range(VALUES):
        try:
            parse()
        except ValueError as error:
            _FAILURES.append(error)
