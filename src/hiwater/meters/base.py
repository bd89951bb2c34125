"""The interface of meters: traits that describe the figure, and four methods: open, close, now, read_and_reset."""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.errors import MeterUnavailable

__all__ = ["Meter", "MeterUnavailable", "Reading", "Traits"]

Reading = tuple[int, int, bool]
"""(now, peak since the last reset, whether nothing else reset the peak in between)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """How exact a meter's figure is, and why. Reports print them; no caller asks which kernel or allocator is behind
    a meter."""

    name: str
    source: str
    """Where the figure comes from, as a phrase for reports."""
    whose: str
    """Whose memory it is: "process", "thread", "interpreter", "process tree" or "cgroup"."""
    unit: str = "bytes"
    exact: bool = True
    """Whether the peak includes everything between two readings; if not, it is a lower bound."""
    reason: str = ""
    """Why it is not exact, or what a reader must know."""
    error_bytes: int = 0
    """The largest error of an exact figure."""
    keeps_peak: bool = True
    """Whether the source has a high-water mark."""
    resets_peak: bool = True
    """Whether that high-water mark can be reset, so that each scope has its own peak."""
    relative: bool = False
    """Whether only differences have a meaning: a scope's figures then count from 0 at its start."""
    cost_us: float = 1.0
    """The approximate cost of one `read_and_reset` in microseconds; docs/scopes.md has measured figures."""


class Meter:
    """Reads one quantity.

    A meter is opened before its first reading and closed after its last; both may be repeated. The manager of scopes
    calls `read_and_reset` under a lock, so a meter needs no lock.
    """

    name = "meter"
    per_thread = False
    """Whether each thread has a separate figure, which only that thread can read."""

    @property
    def has_lifetime_peak(self) -> bool:
        """Whether the source's high-water mark covers its whole life. The peak of an interval is then exact if the
        high-water mark rose in it."""
        return False

    @property
    def disturbance(self) -> str:
        """Why a peak is a lower bound when `read_and_reset` says that something else reset it."""
        return "something else in the process reset the peak during the scope"

    @property
    def traits(self) -> Traits:
        """How exact the figure is here; final once the meter has been opened."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin; raises MeterUnavailable with the reason when that is impossible here."""

    def close(self) -> None:
        """Release what would cost the program something while no scope is open."""

    def forked(self) -> None:
        """Recover in a forked child, where only the calling thread exists."""

    def now(self) -> int:
        """Read the quantity."""
        raise NotImplementedError

    def totals(self) -> tuple[int, int] | None:
        """Bytes and allocations so far, of use as differences; None for a meter that does not count them."""
        return None

    def read_and_reset(self) -> Reading:
        """Read the quantity and its peak since the last reset, and reset the peak.

        A source without a high-water mark knows only the value at each reading, so the base class returns the value now
        as both.
        """
        now = self.now()
        return now, now, True
