"""Watches a process, and what it starts, at an interval that is kept.

A tick reads every watched process once. Ticks are due at fixed times from the start, so that lateness does not add up; one
that is missed is left out and counted. Between ticks the watcher sleeps, and wakes for the kernel's news of forks and exits.
"""

from __future__ import annotations

import os
import select
import time

from hiwater._os import procfs
from hiwater._os.process_identity import start_ticks_of
from hiwater._os.procfs import ProcessMemory
from hiwater.errors import HiwaterError
from hiwater.sampling import events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Protocol

    class Sink(Protocol):
        """Where a watcher puts what it sees. Times are CLOCK_MONOTONIC nanoseconds."""

        def appeared(self, process: Watched) -> None:
            """A process is watched from now on."""

        def sampled(self, process: Watched, at_ns: int, resident_bytes: int) -> None:
            """A reading, in order of time for each process."""

        def ended(self, process: Watched) -> None:
            """A process is gone; its figures are final."""


_SELECT_LIMIT = 1024  # select(2) knows no higher descriptors; without one, its news waits for the next tick
_MARK_INTERVAL_NS = 5_000_000  # the kernel's mark costs five times a plain reading: as often as this, or at every tick


class Watched:
    """One process under watch and its figures so far, in bytes and CLOCK_MONOTONIC nanoseconds."""

    __slots__ = (
        "command", "end_ns", "exit_status", "first_bytes", "last_bytes", "mark_at_start", "mark_bytes", "mark_read_ns",
        "memory", "name", "number", "parent_pid", "peak_bytes", "peak_is_exact", "pid", "provisional", "samples", "start_ns",
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
        self.mark_bytes = 0
        self.mark_at_start: int | None = None
        self.mark_read_ns = 0
        self.samples = 0
        self.peak_is_exact = False  # whether the kernel's own mark says so, for all the time it was watched
        self.provisional: tuple[int, int] | None = None
        self.name = ""
        self.command: list[str] = []
        self.look_up_names()

    def look_up_names(self) -> None:
        """Name and command line as they are now: an exec changes them. A zombie has no command line any more."""
        self.name = procfs.name_of(self.pid) or self.name
        self.command = procfs.command_of(self.pid)

    @property
    def mark_rose(self) -> bool:
        """Whether memory went above all it had been before we came: then the kernel's mark is the peak of our time."""
        return self.mark_at_start is not None and self.mark_bytes > self.mark_at_start


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
        """Open the process. `exclude` are processes that are never watched, nor what they start. `is_fresh` says that the
        process has just begun its program, so that the kernel's mark is about nothing that came before.

        Raises NoSuchProcess or ProcessNotReadable.
        """
        self._reader = reader
        self._sink = sink
        self._interval_ns = interval_ns
        self._children = children
        self._events = events.listen() if children else None
        self._excluded = {os.getpid(), *exclude}
        self._alive: dict[int, Watched] = {}
        # Start of each process that ended and may still be listed; None where it could not be read any more.
        self._gone: dict[int, int | None] = {}
        self.processes: list[Watched] = []
        self.missed_ticks = 0
        self.ticks = 0
        memory = procfs.open_target(pid, reader)
        self._pidfd = _pidfd(pid)
        self.root = self._add(pid, procfs.parent_of(pid), time.monotonic_ns(), memory)
        if is_fresh:
            self.root.mark_at_start = 0

    @property
    def finds_children_by(self) -> str:
        if not self._children:
            return "not asked for"
        return "kernel events" if self._events is not None else "a look at every tick"

    def run(
        self, *, until_ns: int | None = None, on_tick: Callable[[int], bool] | None = None, stop_on: int = -1
    ) -> None:
        """Watch until the target has ended, `until_ns` is past, `on_tick(now)` returns true, or there is something to read
        from the descriptor `stop_on`; the last reading is taken after that."""
        due = time.monotonic_ns()
        if self._children:
            self._scan(due, is_first=True)
        is_last = False
        while True:
            now = time.monotonic_ns()
            self._take_news()
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
        """Let go of every descriptor. Processes that still run are told of as they are."""
        for process in list(self._alive.values()):
            self._read_mark(process, time.monotonic_ns())
            process.peak_is_exact = process.mark_rose and process.peak_bytes == process.mark_bytes
            if process.memory is not None:
                process.memory.close()
        if self._events is not None:
            self._events.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _sleep_until(self, due: int, stop_on: int) -> bool:
        """Sleep; news is taken as it comes, and the target's end ends the sleep. True when told to stop."""
        events_file = self._events.fileno() if self._events is not None else -1
        waited_for = [file for file in (self._pidfd, events_file, stop_on) if 0 <= file < _SELECT_LIMIT]
        while (left := due - time.monotonic_ns()) > 0:
            readable, _, _ = select.select(waited_for, [], [], left / 1e9)
            if events_file in readable:
                self._take_news()
            if stop_on in readable:
                return True
            if self._pidfd in readable:
                return False
        return False

    def _tick(self, now: int) -> None:
        self.ticks += 1
        if self._children and self._events is None:
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
        if at_ns - process.mark_read_ns >= min(_MARK_INTERVAL_NS, self._interval_ns):
            self._read_mark(process, at_ns)

    def _is_still_its_parent(self, process: Watched) -> bool:
        """Whether a new child has not begun its own program and runs in its parent's memory, which is counted already."""
        parent = self._alive.get(process.parent_pid)
        if parent is None or parent.memory is None or process.memory is None or process.name != parent.name:
            return False
        return process.memory.shares_memory_with(parent.memory)

    def _note(self, process: Watched, at_ns: int, resident: int) -> None:
        process.provisional = None
        if process.samples == 0:
            process.first_bytes = resident
        process.samples += 1
        process.last_bytes = resident
        process.peak_bytes = max(process.peak_bytes, resident)
        self._sink.sampled(process, at_ns, resident)

    def _read_mark(self, process: Watched, at_ns: int) -> None:
        """Read the kernel's mark: memory that came and went since the last look is in it, and becomes a sample of its own."""
        figures = process.memory.mark_and_resident() if process.memory is not None else None
        if figures is None:
            return
        process.mark_read_ns = at_ns
        if self._events is None and figures[0] < process.mark_bytes and procfs.name_of(process.pid) != process.name:
            self._begins_program(process)  # nobody tells us, but no mark goes down by itself
        process.mark_bytes = figures[0]
        if process.mark_at_start is None:
            process.mark_at_start = figures[0]
        elif process.mark_rose and figures[0] > process.peak_bytes:
            process.peak_bytes = figures[0]
            self._sink.sampled(process, at_ns, figures[0])

    def _maybe_ended(self, process: Watched) -> None:
        """A process without memory is gone, or for an instant between two programs (exec)."""
        if procfs.state_of(process.pid) in {"", "Z", "X"} or process.memory is None:
            self._end(process, time.monotonic_ns())

    def _end(self, process: Watched, at_ns: int) -> None:
        del self._alive[process.pid]
        memory = process.memory
        self._gone[process.pid] = memory.start_ticks if memory is not None else start_ticks_of(process.pid)
        if process.provisional is not None:
            self._note(process, *process.provisional)  # it lived for less than a tick: what it had when it appeared
        process.end_ns = at_ns
        if memory is not None:
            memory.close()
        self._sink.ended(process)

    # Processes that come and go

    def _add(self, pid: int, parent_pid: int, at_ns: int, memory: ProcessMemory | None) -> Watched:
        process = Watched(len(self.processes), pid, parent_pid, at_ns, memory)
        self.processes.append(process)
        self._alive[pid] = process
        self._sink.appeared(process)
        return process

    def _appear(self, pid: int, parent_pid: int, at_ns: int, *, was_there: bool = False) -> None:
        """Watch a child, a new one unless it `was_there`. One that is gone already is told of, too: it did live."""
        try:
            memory: ProcessMemory | None = self._reader(pid)
        except HiwaterError:
            memory = None
        process = self._add(pid, parent_pid, at_ns, memory)
        if not was_there:
            process.mark_at_start = 0
        resident = memory.resident_bytes() if memory is not None else None
        if resident is not None and not self._is_still_its_parent(process):
            process.provisional = (time.monotonic_ns(), resident)

    def _take_news(self) -> None:
        if self._events is None:
            return
        for event in self._events.read():
            if event.kind == events.FORK:
                if event.parent in self._alive and event.pid not in self._excluded and event.pid not in self._alive:
                    self._appear(event.pid, event.parent, event.at_ns)
            elif event.pid in self._alive:
                self._heard_of(self._alive[event.pid], event)
        if self._events.lost:
            self._events.lost = False
            self._scan(time.monotonic_ns())

    def _heard_of(self, process: Watched, event: events.Event) -> None:
        if event.kind == events.EXEC:
            self._begins_program(process)
            resident = process.memory.resident_bytes() if process.memory is not None else None
            if resident is not None:
                process.provisional = (time.monotonic_ns(), resident)
            self._sink.appeared(process)
        else:
            process.exit_status = os.waitstatus_to_exitcode(event.status)
            self._end(process, event.at_ns)

    def _begins_program(self, process: Watched) -> None:
        process.look_up_names()
        if process is not self.root:  # what it had before was its parent's memory, seen through a fork
            process.peak_bytes = process.mark_bytes = process.mark_at_start = 0

    def _scan(self, now: int, *, is_first: bool = False) -> None:
        """Look for children of everything that is watched."""
        look = list(self._alive)
        while look:
            parent = look.pop()
            for child in procfs.children_of(parent):
                if child in self._alive or child in self._excluded:
                    continue
                if child in self._gone and start_ticks_of(child) in (None, self._gone[child]):
                    continue  # told of already: a zombie, or one that its parent has waited for since it was listed
                self._appear(child, parent, now, was_there=is_first)
                look.append(child)


def _pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel has none (before Linux 5.3)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
