"""What every ledger held at one moment, and the stacks that come of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from hiwater.capture.layout import COUNTED_KINDS, KINDS

if TYPE_CHECKING:
    from hiwater.capture.model import Capture

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack. `file` is empty and `line` 0 for what is not Python code."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function


@dataclass(frozen=True, slots=True)
class Stack:
    """What one call path held, of one kind of memory. Frames are root first; `thread` is the name of the thread."""

    bytes: int
    blocks: int
    kind: str
    thread: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """Who held what: parallel arrays with an entry for each (call path, kind), largest first. Every view shows this order."""

    node: Ints
    kind: Ints
    bytes: Ints
    blocks: Ints

    @property
    def total_bytes(self) -> int:
        return int(self.bytes.sum())

    @property
    def total_blocks(self) -> int:
        return int(self.blocks.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """One moment of a recording.

    `name` is "peak", "end" or "slice"; `at_ns` is the time since the recording began at which the figures hold, and
    [start_ns, end_ns] the stretch of time they are the peak of. `bytes` and `blocks` are what each ledger held.
    `recorded_bytes` and `recorded_blocks` are the recorder's own sums of the counted kinds. `error_bytes` is the most by which the figure of any
    one ledger may be out of date: 0 for the peak and the end.
    """

    capture: Capture
    name: str
    at_ns: int
    start_ns: int
    end_ns: int
    bytes: Ints
    blocks: Ints
    recorded_bytes: int
    recorded_blocks: int
    error_bytes: int = 0

    @property
    def allocated_bytes(self) -> int:
        """The sum of the counted kinds: Python objects, native heap, used anonymous mappings, device memory."""
        return sum(self.kind_bytes()[kind] for kind in COUNTED_KINDS)

    @property
    def allocated_blocks(self) -> int:
        return int(self.blocks[self.capture.ledger_kind < len(COUNTED_KINDS)].sum())

    def kind_bytes(self) -> dict[str, int]:
        """Bytes held of every kind, counted or not."""
        return self._by_kind(self.bytes)

    def kind_blocks(self) -> dict[str, int]:
        """Blocks held of every kind, counted or not."""
        return self._by_kind(self.blocks)

    def _by_kind(self, values: Ints) -> dict[str, int]:
        sums = np.zeros(len(KINDS), np.int64)
        np.add.at(sums, self.capture.ledger_kind, values)
        return dict(zip(KINDS, sums.tolist(), strict=True))

    def holdings(self, kind: str = "all") -> Holdings:
        """The call paths that held something of `kind` ("all": of every counted kind), largest first, equal ones as recorded."""
        kinds = self.capture.ledger_kind
        wanted = kinds < len(COUNTED_KINDS) if kind == "all" else kinds == KINDS.index(kind)
        held = np.flatnonzero(wanted & ((self.bytes != 0) | (self.blocks != 0)))
        held = held[np.argsort(-self.bytes[held], kind="stable")]
        return Holdings(self.capture.ledger_node[held], kinds[held], self.bytes[held], self.blocks[held])

    @property
    def stacks(self) -> Stacks:
        """The stacks of all counted kinds, largest first; they sum to `allocated_bytes`."""
        return Stacks(self.capture, self.holdings())


class Stacks(Sequence[Stack]):
    """Stacks made when they are looked at: a capture may hold a million."""

    def __init__(self, capture: Capture, holdings: Holdings) -> None:
        self._capture = capture
        self._holdings = holdings

    def __len__(self) -> int:
        return len(self._holdings.node)

    @overload
    def __getitem__(self, index: int) -> Stack: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Stack]: ...
    def __getitem__(self, index: int | slice) -> Stack | Sequence[Stack]:
        if isinstance(index, slice):
            held = self._holdings
            part = Holdings(held.node[index], held.kind[index], held.bytes[index], held.blocks[index])
            return Stacks(self._capture, part)
        return self._stack(range(len(self))[index])

    def __iter__(self) -> Iterator[Stack]:
        return map(self._stack, range(len(self)))

    def _stack(self, index: int) -> Stack:
        held = self._holdings
        thread, frames = self._capture.path_of(int(held.node[index]))
        return Stack(int(held.bytes[index]), int(held.blocks[index]), KINDS[held.kind[index]], thread, frames)

    def __repr__(self) -> str:
        return f"<{len(self)} stacks holding {self._holdings.total_bytes} bytes>"
