"""Samples a process and its descendants at fixed times.

A tick reads every watched process once. Ticks are due at fixed times from the start, so that delays do not accumulate;
a missed tick is skipped and counted. Between ticks the watcher sleeps, and wakes up when the target ends.
"""

from __future__ import annotations

import os
import select
import time

from hiwater._os import processes
from hiwater._os.processes import ProcessMemory, start_ticks_of
from hiwater.errors import HiwaterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Protocol

    class Sink(Protocol):
        """The receiver of a watcher's readings. Times are CLOCK_MONOTONIC nanoseconds."""

        def appeared(self, process: Watched) -> None:
            """A process is watched from now on."""

        def sampled(self, process: Watched, at_ns: int, resident_bytes: int) -> None:
            """A reading, in order of time for each process."""

        def ended(self, process: Watched) -> None:
            """A process has ended; its figures are final."""


_SELECT_LIMIT = 1024  # select(2) accepts only lower descriptors; what a higher one says waits for the next tick
_HIGH_WATER_INTERVAL_NS = 5_000_000  # VmHWM costs five plain readings, so it is read no more often than this


class Watched:
    """One watched process and its figures so far, in bytes and CLOCK_MONOTONIC nanoseconds."""

    __slots__ = (
        "command", "end_ns", "exit_status", "first_bytes", "high_water_at_start", "high_water_bytes",
        "high_water_read_ns", "last_bytes", "memory", "name", "number", "parent_pid", "peak_bytes", "peak_is_exact",
        "pid", "samples", "start_ns",
    )  # fmt: skip

    def __init__(self, number: int, pid: int, parent_pid: int, start_ns: int, memory: ProcessMemory | None) -> None:
        self.number = number
        self.pid = pid
        self.parent_pid = parent_pid
        self.start_ns = start_ns
        self.memory = memory
        self.end_ns: int | None = None
        self.exit_status: int | None = None
        self.first_bytes = self.last_bytes = self.peak_bytes = 0
        self.high_water_bytes = 0
        self.high_water_at_start: int | None = None
        self.high_water_read_ns = 0
        self.samples = 0
        self.peak_is_exact = False  # whether the kernel's high-water mark covers the whole time it was watched
        self.name = ""
        self.command: list[str] = []
        self.read_names()

    def read_names(self) -> None:
        """Read name and command line again, because an exec changes them. A zombie has no command line."""
        self.name = processes.name_of(self.pid) or self.name
        self.command = processes.command_of(self.pid)

    @property
    def high_water_rose(self) -> bool:
        """Whether the high-water mark rose while the process was watched; it is then the peak of that time."""
        return self.high_water_at_start is not None and self.high_water_bytes > self.high_water_at_start


class Watcher:
    """Watches `pid` and, with `children`, everything it starts."""

    def __init__(
        self,
        pid: int,
        sink: Sink,
        *,
        interval_ns: int,
        children: bool = True,
        exclude: Collection[int] = (),
        is_fresh: bool = False,
        reader: Callable[[int], ProcessMemory] = ProcessMemory,
    ) -> None:
        """Open the process. The processes in `exclude` and their descendants are not watched. `is_fresh` says that the
        process has just begun its program, so that the kernel's high-water mark covers nothing else.

        Raises NoSuchProcess or ProcessNotReadable.
        """
        self._reader = reader
        self._sink = sink
        self._interval_ns = interval_ns
        self.watches_children = children
        self._excluded = {os.getpid(), *exclude}
        self._alive: dict[int, Watched] = {}
        # Start of each process that ended and may still be listed; None where it could not be read any more.
        self._gone: dict[int, int | None] = {}
        self.processes: list[Watched] = []
        self.missed_ticks = 0
        self.ticks = 0
        memory = processes.open_target(pid, reader)
        self._pidfd = _pidfd(pid)
        self.root = self._add(pid, processes.parent_of(pid), time.monotonic_ns(), memory)
        if is_fresh:
            self.root.high_water_at_start = 0

    @property
    def finds_children_by(self) -> str:
        return "a search at every tick" if self.watches_children else "not wanted"

    def run(
        self, *, until_ns: int | None = None, on_tick: Callable[[int], bool] | None = None, stop_on: int = -1
    ) -> None:
        """Watch until the target has ended, `until_ns` is over, `on_tick(now)` returns true, or the descriptor
        `stop_on` becomes readable; then take the last reading."""
        due = time.monotonic_ns()
        if self.watches_children:
            self._scan(due, is_first=True)
        is_last = False
        while True:
            now = time.monotonic_ns()
            self._tick(now)
            is_last = is_last or self.root.end_ns is not None or (until_ns is not None and now >= until_ns)
            if (on_tick is not None and on_tick(now)) or is_last:
                return
            due += self._interval_ns
            late = time.monotonic_ns() - due
            if late > 0:
                skipped = -(-late // self._interval_ns)
                self.missed_ticks += skipped
                due += skipped * self._interval_ns
            is_last = self._sleep_until(due if until_ns is None else min(due, until_ns), stop_on)

    def close(self) -> None:
        """Close all descriptors, after a last reading of the high-water marks."""
        for process in list(self._alive.values()):
            self._read_high_water(process, time.monotonic_ns())
            process.peak_is_exact = process.high_water_rose and process.peak_bytes == process.high_water_bytes
            if process.memory is not None:
                process.memory.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _sleep_until(self, due: int, stop_on: int) -> bool:
        """Sleep; the target's end ends the sleep. Return True to stop."""
        waited_for = [file for file in (self._pidfd, stop_on) if 0 <= file < _SELECT_LIMIT]
        while (left := due - time.monotonic_ns()) > 0:
            if not waited_for:
                time.sleep(left / 1e9)
                continue
            readable, _, _ = select.select(waited_for, [], [], left / 1e9)
            if stop_on in readable:
                return True
            if self._pidfd in readable:
                return False
        return False

    def _tick(self, now: int) -> None:
        self.ticks += 1
        if self.watches_children:
            self._scan(now)
        for process in list(self._alive.values()):
            self._sample(process)

    def _sample(self, process: Watched) -> None:
        at_ns = time.monotonic_ns()
        resident = process.memory.resident_bytes() if process.memory is not None else None
        if resident is None:
            self._maybe_ended(process)
            return
        if process.samples == 0 and self._is_still_its_parent(process):
            return
        self._note(process, at_ns, resident)
        if at_ns - process.high_water_read_ns >= min(_HIGH_WATER_INTERVAL_NS, self._interval_ns):
            self._read_high_water(process, at_ns)

    def _is_still_its_parent(self, process: Watched) -> bool:
        """Whether a new child has not yet begun its program and still runs in its parent's memory, which is already
        counted."""
        parent = self._alive.get(process.parent_pid)
        if parent is None or parent.memory is None or process.memory is None or process.name != parent.name:
            return False
        return process.memory.shares_memory_with(parent.memory)

    def _note(self, process: Watched, at_ns: int, resident: int) -> None:
        if process.samples == 0:
            process.first_bytes = resident
        process.samples += 1
        process.last_bytes = resident
        process.peak_bytes = max(process.peak_bytes, resident)
        self._sink.sampled(process, at_ns, resident)

    def _read_high_water(self, process: Watched, at_ns: int) -> None:
        """Read the kernel's high-water mark. If it shows a peak between two readings, add that as a sample."""
        figures = process.memory.peak_and_resident() if process.memory is not None else None
        if figures is None:
            return
        process.high_water_read_ns = at_ns
        if figures[0] < process.high_water_bytes and processes.name_of(process.pid) != process.name:
            self._begins_program(process)  # only a new program lowers the high-water mark
        process.high_water_bytes = figures[0]
        if process.high_water_at_start is None:
            process.high_water_at_start = figures[0]
        elif process.high_water_rose and figures[0] > process.peak_bytes:
            process.peak_bytes = figures[0]
            self._sink.sampled(process, at_ns, figures[0])

    def _maybe_ended(self, process: Watched) -> None:
        """A process without memory has ended, or is between two programs (exec)."""
        if processes.state_of(process.pid) in {"", "Z", "X"} or process.memory is None:
            self._end(process, time.monotonic_ns())

    def _end(self, process: Watched, at_ns: int) -> None:
        del self._alive[process.pid]
        memory = process.memory
        self._gone[process.pid] = memory.start_ticks if memory is not None else start_ticks_of(process.pid)
        process.end_ns = at_ns
        if memory is not None:
            memory.close()
        self._sink.ended(process)

    # Processes that appear and end

    def _add(self, pid: int, parent_pid: int, at_ns: int, memory: ProcessMemory | None) -> Watched:
        process = Watched(len(self.processes), pid, parent_pid, at_ns, memory)
        self.processes.append(process)
        self._alive[pid] = process
        self._sink.appeared(process)
        return process

    def _appear(self, pid: int, parent_pid: int, at_ns: int, *, was_there: bool = False) -> None:
        """Watch a child; it is new unless it `was_there`. A child that has already ended is reported, too."""
        try:
            memory: ProcessMemory | None = self._reader(pid)
        except HiwaterError:
            memory = None
        process = self._add(pid, parent_pid, at_ns, memory)
        if not was_there:
            process.high_water_at_start = 0

    def _begins_program(self, process: Watched) -> None:
        process.read_names()
        if process is not self.root:  # its memory before was a copy of its parent's
            process.peak_bytes = process.high_water_bytes = process.high_water_at_start = 0

    def _scan(self, now: int, *, is_first: bool = False) -> None:
        """Search for children of all watched processes."""
        pending = list(self._alive)
        while pending:
            parent = pending.pop()
            for child in processes.children_of(parent):
                if child in self._alive or child in self._excluded:
                    continue
                if child in self._gone and start_ticks_of(child) in (None, self._gone[child]):
                    continue  # already reported: a zombie, or its parent has waited for it since
                self._appear(child, parent, now, was_there=is_first)
                pending.append(child)


def _pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel has none (before Linux 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
