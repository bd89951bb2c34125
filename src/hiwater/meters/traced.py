"""tracemalloc as a meter: only when asked for by name, because it slows a program several times and enlarges it."""

from __future__ import annotations

from hiwater.meters.base import Meter, Reading, Traits


class Traced(Meter):
    """Bytes that tracemalloc has traced. Tracing that somebody else started is left running, its peak included in ours is not.

    tracemalloc has one peak for the process; each reading resets it, so while a scope that asked for this meter is open, the user's
    own `get_traced_memory()` peak begins at the last reset.
    """

    name = "tracemalloc"

    def __init__(self) -> None:
        self._started_here = False

    @property
    def traits(self) -> Traits:
        """Exact for what Python's allocators handed out since tracing began, blind for all else."""
        return Traits(
            self.name,
            "tracemalloc: Python's allocators only",
            "interpreter",
            reason="torch, C++ and other native memory is not in it",
            cost_us=1,
        )

    def open(self) -> None:
        """Begin tracing with one frame, unless it is on."""
        import tracemalloc

        self._started_here = not tracemalloc.is_tracing()
        if self._started_here:
            tracemalloc.start(1)

    def close(self) -> None:
        """Leave tracing as it was found."""
        import tracemalloc

        if self._started_here:
            tracemalloc.stop()
        self._started_here = False

    def now(self) -> int:
        """Return traced bytes."""
        import tracemalloc

        return tracemalloc.get_traced_memory()[0]

    def read_and_reset(self) -> Reading:
        """Return (traced bytes, their peak since the last reset, whether tracing was on all the time)."""
        import tracemalloc

        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return now, peak, tracemalloc.is_tracing()
