"""tracemalloc as a meter. Used only when named explicitly, because it slows a program several times and needs much
memory."""

from __future__ import annotations

from hiwater.meters.base import Meter, Reading, Traits


class Traced(Meter):
    """Bytes that tracemalloc has traced. If the program started tracing, tracing continues after the last scope.

    tracemalloc has one peak for the process, and each reading resets it. So while a scope with this meter is open, the
    peak in the program's `get_traced_memory()` begins at the last reset.
    """

    name = "tracemalloc"

    def __init__(self) -> None:
        self._started_here = False

    @property
    def traits(self) -> Traits:
        """Exact for blocks of Python's allocators since tracing began; nothing else is included."""
        return Traits(
            self.name,
            "tracemalloc: Python's allocators only",
            "interpreter",
            reason="it does not include torch, C++ and other native memory",
            cost_us=1,
        )

    def open(self) -> None:
        """Begin tracing with one frame, unless it is on."""
        import tracemalloc

        self._started_here = not tracemalloc.is_tracing()
        if self._started_here:
            tracemalloc.start(1)

    def close(self) -> None:
        """Stop tracing if this meter started it."""
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
