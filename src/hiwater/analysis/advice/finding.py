"""What a rule of advice finds: the line to change, the figures that show it, what a change saves, and what to
change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hiwater.capture.paths import Frame


class Rule(StrEnum):
    """The rules, by the names that reports show."""

    object_column = "object column"
    over_allocated = "over-allocated container"
    arenas = "arenas kept by few objects"
    malloc_trim = "free memory kept by malloc"
    forked = "forked pages that became private"
    untouched = "untouched reservation"


Unit = Literal["bytes", "blocks", "collections"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the evidence. `measures` says of which memory it is, when, and how exact."""

    name: str
    value: int
    unit: Unit
    measures: str


@dataclass(frozen=True, slots=True)
class Saving:
    """What the change saves, in bytes: at least `least_bytes`, at most `most_bytes`, of what `measures` says: one of
    the texts below."""

    least_bytes: int
    most_bytes: int
    measures: str


ALLOCATED_PEAK = "the allocated peak"
ALLOCATED = "allocated memory that is not in RAM"
RESIDENT_END = "resident memory at the end"
PRIVATE = "the private memory of this process"


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice. `frame` is a line of the user's own code, or None where none of them is responsible.
    `condition` says what has to hold for it, where the recording cannot tell; "" if nothing has."""

    rule: Rule
    frame: Frame | None
    evidence: tuple[Figure, ...]
    saving: Saving
    change: str
    condition: str = ""
