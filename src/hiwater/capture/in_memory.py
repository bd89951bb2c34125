"""Which captures of a run have their tables in memory: those that were read last, up to a bound."""

from __future__ import annotations

from typing import Protocol

MOST_BYTES = 128 << 20
"""The bound, of tables. What is computed from a capture's tables takes about twice as much again."""


class _Held(Protocol):
    def let_go(self) -> None: ...


class TablesInMemory:
    """The captures whose tables are in memory, in the order in which they were read. The last one stays, whatever its size is."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: dict[_Held, int] = {}

    def add(self, capture: _Held, size: int) -> None:
        """Count a capture whose tables of `size` bytes were just read, and let go of those that were read first."""
        self._held[capture] = size
        while sum(self._held.values()) > self._most_bytes and len(self._held) > 1:
            first = next(iter(self._held))
            first.let_go()
            del self._held[first]
