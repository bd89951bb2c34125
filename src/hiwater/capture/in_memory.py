"""Which captures of a run have their tables in memory: those that were read last, up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hiwater.capture.native_frames import Frames, Namer
from hiwater.capture.tables import Tables
from hiwater.errors import CorruptCapture, HiwaterError

_Value = TypeVar("_Value")
MOST_BYTES = 128 << 20
"""The bound, of tables. What is computed from a capture's tables takes about twice as much again."""


class TablesInMemory:
    """The captures whose tables are in memory, in the order in which they were read. The last one stays, whatever
    its size is."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: dict[LetGo, int] = {}

    def add(self, capture: LetGo, size: int) -> None:
        """Count a capture whose tables of `size` bytes were just read, and let go of those that were read first."""
        self._held[capture] = size
        while sum(self._held.values()) > self._most_bytes and len(self._held) > 1:
            first = next(iter(self._held))
            first.let_go()
            del self._held[first]


class LetGo:
    """A capture whose tables may be let go and read again. `figures` names the attributes that stay: figures, and
    what a process has over time. All others that are computed once grow with its stacks, and go with the tables."""

    figures: ClassVar[tuple[str, ...]]

    def __init__(
        self, tables: Tables, again: Callable[[], Tables] | None = None, in_memory: TablesInMemory | None = None
    ) -> None:
        """`again` reads the tables once more, where `in_memory` has let them go."""
        self._tables: Tables | None = tables
        self._again, self._in_memory = again, in_memory
        self.also_own: Sequence[str] = ()
        """Installed packages whose code counts as the user's own, besides what the capture says."""
        self._shows: tuple[Frames, Namer] | None = None
        self.path: Path = tables.path
        self.header: dict[str, Any] = tables.header
        """The numbers of the capture's header, by their names in `native/capture/format.h`."""
        self.facts: dict[str, str] = tables.facts
        """What the recorder was told about the program, as text."""
        self._count()

    @property
    def tables(self) -> Tables:
        """The decoded tables, for data that no attribute has."""
        if self._tables is not None:
            return self._tables
        assert self._again is not None  # without it they are never let go
        tables = self._tables = self._again()
        if tables.header != self.header:
            raise CorruptCapture(f"{str(self.path)!r} was replaced while it was being read", "read it again")
        if self._shows is not None:
            tables = self._tables = tables.showing(*self._shows)
        tables.also_own = self.also_own
        self._count()
        return tables

    def count_as_own(self, packages: Sequence[str]) -> None:
        """Count these packages as the user's own. Before anything is asked of the tables."""
        self.also_own = packages
        if self._tables is not None:
            self._tables.also_own = packages

    def show_frames(self, frames: Frames, name: Namer) -> None:
        """Show native frames, by these names. Before anything is asked of the tables."""
        self._shows = frames, name
        if self._tables is not None:
            self._tables = self._tables.showing(frames, name)

    def _count(self) -> None:
        if self._in_memory is not None and self._again is not None and self._tables is not None:
            self._in_memory.add(self, sum(table.nbytes for table in self._tables.contents.tables.values()))

    def let_go(self) -> None:
        """Compute what stays, and let go of the rest: it is read again when it is asked for."""
        for name in self.figures:
            with suppress(HiwaterError):  # raised again where it is asked for
                getattr(self, name)
        for name in [*self.__dict__]:
            if isinstance(getattr(type(self), name, None), cached_property) and name not in self.figures:
                del self.__dict__[name]
        self._tables = None

    @cached_property
    def _remembered(self) -> dict[object, Any]:
        return {}

    def remembered(self, what: object, compute: Callable[[], _Value]) -> _Value:
        """What `compute` returns, computed once for as long as the tables are in memory."""
        if what not in self._remembered:
            self._remembered[what] = compute()
        value: _Value = self._remembered[what]
        return value
