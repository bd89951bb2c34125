"""A cycle whose __del__ puts the object back into a list: the collector cannot free it for good."""

from __future__ import annotations

from noise import VALUES, text, work

_REVIVED: list[Node] = []


class Node:
    def __init__(self) -> None:
        self.me = self
        self.content = text()  # leak

    def __del__(self) -> None:
        _REVIVED.append(self)


def call() -> None:
    work()
    for _ in range(VALUES):
        Node()
