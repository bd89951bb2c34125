"""The bytes and blocks of every account at one moment, and its stacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from hiwater._os.sizes import format_size
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Frame, Ints, Paths, describe_innermost, sum_at
from hiwater.capture.tables import Tables
from hiwater.errors import CorruptCapture


def _standard_error(sample_bytes: int, sampled: int) -> int:
    """The variance of each sampled block is at most sample_bytes times what it stands for (native/heap/sampling.h)."""
    return math.ceil(math.sqrt(sample_bytes * max(0, sampled)))


@dataclass(frozen=True, slots=True)
class Stack:
    """What one call path held, of one kind of memory. Frames are root first; `thread` is the name of the thread."""

    bytes: int
    blocks: int
    kind: str
    thread: str
    frames: tuple[Frame, ...]
    standard_error_bytes: int = 0
    """Of `bytes`, at most; 0 where every block was recorded."""

    def __repr__(self) -> str:
        held = f"{format_size(self.bytes)} in {self.blocks:,} blocks ({self.kind})"
        return f"<Stack of {len(self.frames)} frames: {held}{describe_innermost(self.frames)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """Bytes and blocks of each call path and kind: five int64 arrays of one dimension, with one element for each pair,
    largest first. Every report shows this order.

    `node` is the number of the call path in the table of nodes, and `kind` an index in `KINDS`. `sampled` is the part
    of `bytes` that is estimated from sampled blocks: 0 in an exact recording.
    """

    node: Ints
    kind: Ints
    bytes: Ints
    blocks: Ints
    sampled: Ints
    sample_bytes: int = 0

    def __repr__(self) -> str:
        return f"<Holdings of {len(self.node):,} stacks: {format_size(self.total_bytes)}>"

    def __getitem__(self, part: slice) -> Holdings:
        return Holdings(
            self.node[part], self.kind[part], self.bytes[part], self.blocks[part], self.sampled[part], self.sample_bytes
        )

    def standard_error(self, sampled: int) -> int:
        """The upper bound of the standard error of a sum of which `sampled` bytes are estimated from sampled blocks."""
        return _standard_error(self.sample_bytes, sampled)

    def checked(self) -> Holdings:
        """The same. Raises CorruptCapture where a stack holds less than nothing."""
        lowest = int(self.bytes.min(initial=0))
        if lowest < 0:
            raise CorruptCapture(f"the capture is damaged: a stack holds {lowest} bytes", "record again")
        return self

    @property
    def total_bytes(self) -> int:
        return int(self.bytes.sum())

    @property
    def total_blocks(self) -> int:
        return int(self.blocks.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One moment of a recording. Times are nanoseconds since the recording began.

    `name` is "peak", "end" or "slice". The figures are those at `at_ns`, the peak of the time from `start_ns` to
    `end_ns`. `bytes` and `blocks` are int64 arrays with one element for each account; the index is that of the table
    `accounts`. `recorded_bytes` and `recorded_blocks` are the recorder's own sums of the counted kinds. `error_bytes`
    is the most by which the figure of one account may be out of date: 0 for the peak and the end.
    """

    tables: Tables
    name: str
    at_ns: int
    start_ns: int
    end_ns: int
    bytes: Ints
    blocks: Ints
    recorded_bytes: int
    recorded_blocks: int
    error_bytes: int = 0

    def __repr__(self) -> str:
        held = f"{format_size(self.allocated_bytes)} in {self.allocated_blocks:,} blocks"
        return f"<Snapshot {self.name!r} at {self.at_ns / 1e9:.3f} s: {held}>"

    @property
    def allocated_bytes(self) -> int:
        """The sum of the counted kinds: Python objects, native heap, used anonymous mappings, device memory, shared
        memory that the process made."""
        return sum(self.kind_bytes()[kind] for kind in COUNTED_KINDS)

    @property
    def allocated_blocks(self) -> int:
        return int(self.blocks[is_counted(self.tables.account_kind)].sum())

    @property
    def standard_error_bytes(self) -> int:
        """The most that the standard error of `allocated_bytes` can be; 0 when every block was recorded."""
        sample_bytes = self.tables.header["sample_bytes"]
        if not sample_bytes:
            return 0
        sampled = int(self.bytes[self.tables.account_is_sampled & is_counted(self.tables.account_kind)].sum())
        return _standard_error(sample_bytes, sampled)

    def kind_bytes(self) -> dict[str, int]:
        """Bytes held of every kind, counted or not."""
        return self._by_kind(self.bytes)

    def kind_blocks(self) -> dict[str, int]:
        """Blocks held of every kind, counted or not."""
        return self._by_kind(self.blocks)

    def _by_kind(self, values: Ints) -> dict[str, int]:
        sums = sum_at(len(KINDS), self.tables.account_kind, values)
        return dict(zip(KINDS, sums.tolist(), strict=True))

    def holdings(self, kind: str = "all") -> Holdings:
        """The call paths that held something of `kind` ("all": of every counted kind), largest first, equal ones as
        recorded."""
        kinds = self.tables.account_kind
        wanted = is_counted(kinds) if kind == "all" else kinds == KINDS.index(kind)
        held = np.flatnonzero(wanted & ((self.bytes != 0) | (self.blocks != 0)))
        if self.tables.has_several_accounts:
            return self._of_several(held)
        held = held[np.argsort(-self.bytes[held], kind="stable")]
        nothing = np.zeros(len(held), np.int64)
        return Holdings(self.tables.account_node[held], kinds[held], self.bytes[held], self.blocks[held], nothing)

    def _of_several(self, held: Ints) -> Holdings:
        """Put the accounts of a call path and kind together: of sampled blocks and of those recorded exactly, and of
        blocks allocated before and after a marker."""
        tables = self.tables
        key = tables.account_node[held] * len(KINDS) + tables.account_kind[held]
        places, first, back = np.unique(key, return_index=True, return_inverse=True)
        of_sampled = np.where(tables.account_is_sampled, self.bytes, 0)
        columns = (self.bytes, self.blocks, of_sampled)
        count, blocks, sampled = (sum_at(len(places), back, column[held]) for column in columns)
        order = np.lexsort((first, -count))
        nodes, kinds = tables.account_node[held][first][order], tables.account_kind[held][first][order]
        return Holdings(nodes, kinds, count[order], blocks[order], sampled[order], tables.header["sample_bytes"])

    @property
    def stacks(self) -> Stacks:
        """The stacks of all counted kinds, largest first; they sum to `allocated_bytes`."""
        return Stacks(self.tables.paths, self.holdings())


class Stacks(Sequence[Stack]):
    """A sequence of stacks, each made at its access: a capture may have a million."""

    def __init__(self, paths: Paths, holdings: Holdings) -> None:
        self._paths = paths
        self._holdings = holdings

    def __len__(self) -> int:
        return len(self._holdings.node)

    @overload
    def __getitem__(self, index: int) -> Stack: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Stack]: ...
    def __getitem__(self, index: int | slice) -> Stack | Sequence[Stack]:
        if isinstance(index, slice):
            return Stacks(self._paths, self._holdings[index])
        return self._stack(range(len(self))[index])

    def __iter__(self) -> Iterator[Stack]:
        return map(self._stack, range(len(self)))

    def _stack(self, index: int) -> Stack:
        held = self._holdings
        node = int(held.node[index])
        thread, frames = self._paths.thread(node), self._paths.frames(node)
        error = held.standard_error(int(held.sampled[index]))
        return Stack(int(held.bytes[index]), int(held.blocks[index]), KINDS[held.kind[index]], thread, frames, error)

    def __repr__(self) -> str:
        return f"<{len(self):,} stacks: {format_size(self._holdings.total_bytes)}>"
