"""What every meter has: traits that say what its figure is, and four methods: open, close, now, read_and_reset."""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.errors import MeterUnavailable

__all__ = ["Meter", "MeterUnavailable", "Reading", "Traits"]

Reading = tuple[int, int, bool]
"""(now, the highest since the last reset, whether nobody disturbed the mark in between)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a meter's figure is worth. A view prints them; no caller asks which kernel or allocator is behind a meter."""

    name: str
    source: str
    """Where the figure comes from, in words."""
    whose: str
    """Whose memory it is: "process", "thread", "interpreter", "process tree" or "cgroup"."""
    unit: str = "bytes"
    exact: bool = True
    """Whether the peak misses nothing between two looks; False makes it a lower bound."""
    reason: str = ""
    """Why it is not exact, or what a reader must know."""
    error_bytes: int = 0
    """The most by which an exact figure may be off."""
    keeps_peak: bool = True
    """Whether the source keeps a mark of its own."""
    resets_peak: bool = True
    """Whether that mark can be started anew, so that each scope has its own."""
    relative: bool = False
    """Whether only differences mean something: a scope's figures then count from its start, which is 0."""
    cost_us: float = 1.0
    """About what one `read_and_reset` costs, in microseconds; measured figures stand in docs/scopes.md."""


class Meter:
    """Reads one quantity now.

    A meter is opened before its first reading and closed after its last; both may be repeated. `read_and_reset` is called under one lock, by
    whoever opens or closes a scope, so a meter needs no lock of its own.
    """

    name = "meter"
    per_thread = False
    """Whether each thread has its own figure, which only it can read."""

    @property
    def mark_only_rises(self) -> bool:
        """Whether the source's mark is of its whole life: `read_and_reset` then calls intact an interval in which it rose."""
        return False

    @property
    def disturbance(self) -> str:
        """What it means when `read_and_reset` says that the peak was disturbed."""
        return "something else in the process started the mark anew meanwhile"

    @property
    def traits(self) -> Traits:
        """What the figure is worth here; final once the meter has been opened."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin; raises MeterUnavailable with the reason when that is impossible here."""

    def close(self) -> None:
        """Let go of what costs the program something while nobody measures."""

    def forked(self) -> None:
        """Recover in a forked child, where only the calling thread exists."""

    def now(self) -> int:
        """Read the quantity."""
        raise NotImplementedError

    def read_and_reset(self) -> Reading:
        """Read the quantity and the highest it was since the last reset, and start that mark anew.

        A source without a mark of its own knows only what it sees: the base's answer is now, twice.
        """
        now = self.now()
        return now, now, True
