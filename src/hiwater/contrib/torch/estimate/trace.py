"""The facts of a run: when each storage was made and freed, and where. All figures are computed from these
afterwards."""

from __future__ import annotations

import os
import sysconfig
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))


class CodePlace(NamedTuple):
    """Where a storage was made: the innermost module ("" outside one) and the innermost line outside torch. If that is
    a library's, `own` is the line of the user's code that led there, if there is one: file, line, function."""

    module: str
    file: str
    line: int
    function: str
    own: tuple[str, int, str] | None = None

    @property
    def innermost(self) -> tuple[str, int, str]:
        return self.file, self.line, self.function


NOWHERE = CodePlace("", "", 0, "")


@dataclass(slots=True)
class Storage:
    """One storage of the step. `size` is the requested bytes, before the allocator's rounding."""

    size: int
    place: CodePlace
    phase: str
    category: str = ""
    most: int = 0
    """The largest size of one that may not be made, which has no size."""
    stream: int = 0


class PhaseStart(NamedTuple):
    """A phase of a step that begins at event `start`. Step 0 is the state before the first step."""

    start: int
    step: int
    phase: str


@dataclass(slots=True)
class StepTrace:
    """Storages by number, and events in order: `number` when one is made, `-1 - number` when it is freed."""

    storages: list[Storage] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    phase_starts: list[PhaseStart] = field(default_factory=list)

    def begin(self, step: int, phase: str) -> None:
        self.phase_starts.append(PhaseStart(len(self.events), step, phase))

    def add(self, storage: Storage) -> int:
        """Add a storage that was made, and return its number."""
        number = len(self.storages)
        self.storages.append(storage)
        self.events.append(number)
        return number

    def remove(self, number: int) -> None:
        self.events.append(-1 - number)

    def phase_at(self, event: int) -> PhaseStart:
        """The step and the phase that this event belongs to."""
        return self.phase_starts[max(0, bisect_right([each.start for each in self.phase_starts], event) - 1)]
