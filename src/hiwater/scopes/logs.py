"""The log and the timeline of an open run. A program that is killed leaves its figures in the log.

Each line of a log is one JSON object, written by one system call, so a kill never leaves an incomplete earlier line. A
thread takes the samples; no peak depends on them.
"""

from __future__ import annotations

import json
import os
import threading
import time

from hiwater._os.unrecorded_thread import UnrecordedThread
from hiwater.errors import OutputFailed
from hiwater.scopes.manager import SCOPE_MANAGER
from hiwater.scopes.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any, Protocol, TextIO

    from hiwater.scopes.scope import Scope

    Log = str | os.PathLike[str] | TextIO | logging.Logger

    class LoggedRun(Protocol):
        """What is logged of a run of `hiwater.scopes.tracker`."""

        scope: Scope
        timeline: list[tuple[float, int]]

        @property
        def usage(self) -> Usage: ...


LOG_SECONDS = 1.0
"""The interval between lines for an open run."""
MOST_SAMPLES = 4096
"""A longer timeline loses every second sample, and its interval doubles."""


class Sampling:
    """Writes the log and samples the timeline of one run."""

    def __init__(self, run: LoggedRun, log: Log | None, interval: float | None) -> None:
        """Raises OutputFailed when the log cannot be opened."""
        self._run = run
        self._interval = interval
        self._logger: Any = log if hasattr(log, "info") else None
        self._stream: Any = log if hasattr(log, "write") else None
        self._descriptor = -1
        self.lost_lines = 0
        if isinstance(log, str | os.PathLike):
            try:
                self._descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            except OSError as error:
                raise OutputFailed(
                    f"the log {os.fspath(log)!r} cannot be written ({error.strerror})", "choose another file"
                ) from error
        self._stop = threading.Event()
        self._writing = threading.Lock()

    def begin(self) -> None:
        """Write the first line and start to sample; the run's scope is open."""
        arrived = time.perf_counter_ns()
        if self._writes:
            self._write("begin", self._run.usage)
        if self._interval is not None or self._writes:
            UnrecordedThread(self._sample).start()
        SCOPE_MANAGER.add_overhead(time.perf_counter_ns() - arrived)

    def end(self) -> None:
        """Write the last line; returns without waiting for a sample."""
        self._stop.set()
        if self._writes:
            self._write("end", self._run.usage)
        elif self._logger is not None:
            self._logger.info("%s", self._run.usage)
        self.give_up()

    def give_up(self) -> None:
        """Close the log without a last line."""
        self._stop.set()
        with self._writing:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @property
    def _writes(self) -> bool:
        return self._descriptor >= 0 or self._stream is not None

    def _write(self, event: str, usage: Usage) -> None:
        line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **usage.to_dict()}) + "\n"
        with self._writing:
            if event == "sample" and self._stop.is_set():
                return  # the line of the end is the last
            try:
                if self._stream is not None:
                    self._stream.write(line)
                    self._stream.flush()
                elif self._descriptor >= 0:
                    os.write(self._descriptor, line.encode())
            except (OSError, ValueError):  # a full disk, a closed stream: the program goes on
                self.lost_lines += 1

    def _sample(self) -> None:
        interval = self._interval if self._interval is not None else LOG_SECONDS
        next_line = time.monotonic() + LOG_SECONDS
        while not self._stop.wait(interval):
            arrived = time.perf_counter_ns()
            if self._interval is not None and self._take():
                interval *= 2
            if self._writes and time.monotonic() >= next_line:
                next_line = time.monotonic() + LOG_SECONDS
                self._write("sample", self._run.usage)
            SCOPE_MANAGER.add_overhead(time.perf_counter_ns() - arrived)

    def _take(self) -> bool:
        """Add a sample to the timeline; return whether it was thinned."""
        run = self._run
        resident = next((slot.meter for slot in run.scope.slots if slot.name == "resident"), None)
        if resident is None or run.scope.began is None:
            return False
        elapsed = (time.perf_counter_ns() - run.scope.began[0]) / 1e9
        run.timeline.append((elapsed, resident.now()))
        if len(run.timeline) <= MOST_SAMPLES:
            return False
        del run.timeline[1::2]
        return True
