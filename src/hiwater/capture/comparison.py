"""What changed between two captures, as `Capture.diff` returns it. `hiwater.analysis.diff` computes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from hiwater._os.sizes import format_size
from hiwater.capture.paths import Frame, describe_innermost
from hiwater.capture.snapshot import Snapshot

_ERRORS_APART = 2  # an estimate changed when it did by more than so many standard errors
ChangeState = Literal["grew", "shrank", "new", "gone", "within error"]
Compared = TypeVar("Compared")
"""`Capture`, whose module imports this one."""


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One quantity, before and after; None where a capture does not have it. `standard_error_bytes` is an upper
    bound for the standard error of the difference, 0 when both captures recorded every block."""

    before: int | None
    after: int | None
    standard_error_bytes: int = 0

    @property
    def change(self) -> int | None:
        """After − before."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def percent(self) -> float | None:
        """The change in percent of what was before; None where that was nothing, or is not known."""
        return 100 * self.change / self.before if self.before and self.change is not None else None

    @property
    def is_within_error(self) -> bool:
        """Whether the change may be chance: the figures are estimates, no more than two standard errors apart."""
        return self.change is not None and _is_within_error(self.change, self.standard_error_bytes)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that held memory in either capture.

    `before` and `after` are its frames as each capture has them, root first (one frame when rows are not stacks); empty
    where it held nothing. `kind` is the kind of memory, "" for rows that are not told apart by it. Total bytes count
    what it called, too; for stacks and lines they are the bytes themselves.
    """

    before: tuple[Frame, ...]
    after: tuple[Frame, ...]
    kind: str
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int
    before_total_bytes: int
    after_total_bytes: int
    standard_error_bytes: int

    def __repr__(self) -> str:
        return f"<Change {_signed(self.bytes)} ({self.state}){describe_innermost(self.frames)}>"

    @property
    def bytes(self) -> int:
        """After − before."""
        return self.after_bytes - self.before_bytes

    @property
    def state(self) -> ChangeState:
        """`within error`, `new` (held nothing before), `gone` (holds nothing now), `grew` or `shrank`."""
        if _is_within_error(self.bytes, self.standard_error_bytes):
            return "within error"
        if not self.before_total_bytes:
            return "new"
        if not self.after_total_bytes:
            return "gone"
        return "grew" if self.direction > 0 else "shrank"

    @property
    def direction(self) -> int:
        """Above 0 when it holds more, below when less: itself, or, where that is unchanged, with what it called."""
        return self.bytes or self.after_total_bytes - self.before_total_bytes

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Its frames in the later capture; in the earlier one, where it is gone."""
        return self.after or self.before


def _signed(count: int) -> str:
    return f"{'+' if count > 0 else ''}{format_size(count)}"


def _is_within_error(change: int, standard_error_bytes: int) -> bool:
    return 0 < abs(change) <= _ERRORS_APART * standard_error_bytes


class Changes(Sequence[Change]):
    """Changes, the largest first, and the parts of them that views show."""

    def __repr__(self) -> str:
        return f"<{len(self):,} changes: {_signed(self.bytes)}>"

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The sum of all changes."""

    @property
    @abstractmethod
    def grew(self) -> Changes:
        """Those that hold more: themselves, or, where that is unchanged, with what they called."""

    @property
    @abstractmethod
    def shrank(self) -> Changes:
        """Those that hold less."""

    @abstractmethod
    def after(self, first: int) -> Changes:
        """All but the `first` largest."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Generic[Compared]):
    """Two captures side by side. Made by `hiwater.open(a).diff(b)`.

    `allocated` is the sum of what is compared: of `kind`, at the moments `before_snapshot` and `after_snapshot`.
    `lines` gives every byte to the innermost line of the user's own code, `rows` to what `by` names; both have what
    changed alone, the largest change first.
    """

    before: Compared
    after: Compared
    before_snapshot: Snapshot
    after_snapshot: Snapshot
    kind: str
    by: str
    peak: ComparedFigure
    resident: ComparedFigure
    allocated: ComparedFigure
    kinds: dict[str, ComparedFigure]
    totals: dict[str, ComparedFigure]
    lines: Changes
    rows: Changes

    def __repr__(self) -> str:
        before, after = self.before_snapshot.allocated_bytes, self.after_snapshot.allocated_bytes
        return f"<Comparison of {format_size(before)} allocated with {format_size(after)}: {_signed(after - before)}>"
