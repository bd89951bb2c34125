"""The highest of many samples, for systems where the kernel's high-water mark cannot be reset."""

from __future__ import annotations

import functools
import os
import threading

from hiwater._os.unrecorded_thread import UnrecordedThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

INTERVAL_SECONDS = 0.001


class Watch:
    """Samples resident memory every millisecond, in a native thread that does not need the GIL. Without the engine,
    it is a Python thread, which takes no samples while a call holds the GIL. `source` says which one it is."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._native = _native()
        self._peak = 0
        self._stop: threading.Event | None = None

    @property
    def source(self) -> str:
        """Where the samples come from, as a phrase for reports."""
        if self._native is not None:
            return "VmRSS, sampled every 1 ms by a native thread"
        return "VmRSS, sampled every 1 ms by a Python thread (no samples while a call holds the GIL)"

    def start(self) -> None:
        """Begin to sample; does nothing if it already samples."""
        if self._native is not None:
            _follow_forks()
            self._native.resident_watch_start(int(INTERVAL_SECONDS * 1e9))
        elif self._stop is None:
            self._stop = threading.Event()
            UnrecordedThread(self._sample, self._stop).start()

    def stop(self) -> None:
        """Stop sampling, without waiting for the thread."""
        if self._native is not None:
            self._native.resident_watch_stop()
        elif self._stop is not None:
            self._stop.set()
            self._stop = None

    def peak(self) -> int:
        """Return the highest sample since the last reset."""
        return int(self._native.resident_watch_peak()) if self._native is not None else self._peak

    def read_and_reset(self) -> int:
        """Return the highest sample since the last reset, and reset it."""
        if self._native is not None:
            return int(self._native.resident_watch_read_and_reset())
        peak, self._peak = self._peak, 0
        return peak

    def _sample(self, stop: threading.Event) -> None:
        while not stop.wait(INTERVAL_SECONDS):
            self._peak = max(self._peak, self._read())


@functools.cache
def _follow_forks() -> None:
    """Stop sampling during forks: the interpreter warns when a process forks with a second thread."""
    native = _native()
    resume = native.resident_watch_resume
    os.register_at_fork(before=native.resident_watch_pause, after_in_parent=resume, after_in_child=resume)


def _native() -> Any:
    try:
        from hiwater import _core
    except ImportError:
        return None
    return _core if hasattr(_core, "resident_watch_start") else None
