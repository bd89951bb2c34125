"""The facts of a run: which storage came and went when, and where it was made. Every figure is worked out from these afterwards."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple


class CodePlace(NamedTuple):
    """Where a storage was made: the innermost module ("" outside one) and the line of the user's own that asked for it."""

    module: str
    file: str
    line: int
    function: str


NOWHERE = CodePlace("", "", 0, "")


@dataclass(slots=True)
class Storage:
    """One storage of the step. `size` is what the step asked for, in bytes, before the allocator's rounding."""

    size: int
    place: CodePlace
    phase: str
    category: str = ""


class PhaseStart(NamedTuple):
    """From event `start` on, the run is in this phase of this step (0: what was there before the first)."""

    start: int
    step: int
    phase: str


@dataclass(slots=True)
class StepTrace:
    """Storages by number, and events in order: `number` for one that comes, `-1 - number` for one that goes."""

    storages: list[Storage] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[PhaseStart] = field(default_factory=list)

    def begin(self, step: int, phase: str) -> None:
        self.marks.append(PhaseStart(len(self.events), step, phase))

    def add(self, storage: Storage) -> int:
        """Book a storage that has come; its number."""
        number = len(self.storages)
        self.storages.append(storage)
        self.events.append(number)
        return number

    def remove(self, number: int) -> None:
        self.events.append(-1 - number)

    def mark_at(self, event: int) -> PhaseStart:
        """The step and the phase that this event belongs to."""
        return self.marks[max(0, bisect_right([mark.start for mark in self.marks], event) - 1)]
