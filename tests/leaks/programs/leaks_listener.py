"""Each view subscribes to a signal and never unsubscribes."""

from collections.abc import Callable

from noise import VALUES, text, work


class Signal:
    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def connect(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)


CHANGED = Signal()


class View:
    def __init__(self) -> None:
        self.text = text()  # leak
        CHANGED.connect(self.refresh)

    def refresh(self) -> None:
        self.text = ""


def call() -> None:
    work()
    for _ in range(VALUES):
        View()
