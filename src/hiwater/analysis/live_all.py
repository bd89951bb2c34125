"""All processes of a run that goes on, together: what they hold now, or what that has grown by since a marker that
the viewer set."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from hiwater.analysis.live import LiveCurve, LiveProcess, Row, most_first
from hiwater.capture import Run, run_index
from hiwater.capture.devices import DeviceMemory
from hiwater.capture.paths import Frame
from hiwater.capture.run import of_captures
from hiwater.capture.snapshot import Stack
from hiwater.capture.tracks import Track
from hiwater.errors import CaptureError

MOST_PROCESSES = 64
"""So many are read in full: those that held most when there was room for them. Of others there are sums."""


class AllProcesses:
    """The processes of a run, as one: `run` has their sums at one instant, up to now, as reports have them. The rows
    are of those that run. `read()` before anything else. Times are nanoseconds since the recording of the first
    process began."""

    def __init__(self, processes: list[LiveProcess], rows: list[run_index.Row]) -> None:
        """`processes` and the `rows` of the index are those of the run, which grow."""
        self._processes = processes
        self._rows = rows
        self.run = Run([])
        self._detailed: list[LiveProcess] = []
        self._has_line: dict[tuple[str, int], LiveProcess] = {}
        self._at_marker: dict[LiveProcess, int] = {}  # allocated bytes of those that were not read in full then
        self.marker_ns: int | None = None

    def read(self) -> None:
        """Read what has changed: of up to MOST_PROCESSES all, and the sums of the others."""
        for process in self._processes:
            process.read_sums()
        before = self._detailed
        chosen = sorted(self.running, key=lambda one: (one not in before, -one.allocated_bytes))[:MOST_PROCESSES]
        self._detailed = [one for one in chosen if _was_read(one)]
        for one in before:
            if one not in self._detailed:
                one.forget()
        self._has_line = {}
        self.add_up()

    def add_up(self) -> None:
        """Make the sums anew, of what was read of the processes."""
        self.run = of_captures([one.capture for one in self._processes if one.capture is not None], self._rows)

    # Sums

    @property
    def running(self) -> list[LiveProcess]:
        return [process for process in self._processes if process.is_running]

    @property
    def allocated_bytes(self) -> int:
        return sum(process.allocated_bytes for process in self.running)

    @property
    def resident_bytes(self) -> int:
        """Resident memory without hiwater's tables. Pages that processes share count once where it is known how many
        these are."""
        running = self._resident_tracks
        all_run = np.array([min((track.end_ns for track in running), default=0) - 1])
        twice = [track for machine in self.run.machines for track in machine.counted_twice]
        held = sum(int(track.bytes[-1]) for track in running)
        return max(0, held + sum(int(track.at(all_run)[0]) for track in twice))

    @property
    def shared_once(self) -> int:
        """The number of running processes of which that is known."""
        return sum(track.shares for track in self._resident_tracks)

    @property
    def _resident_tracks(self) -> list[Track]:
        running = {id(process.capture) for process in self.running}
        tracks = [pair for machine in self.run.machines for pair in machine.resident_tracks]
        return [track for capture, track in tracks if id(capture) in running]

    @property
    def peak(self) -> tuple[int, int]:
        """The highest sum of allocated bytes so far, and when that was."""
        highest = self.run.highest
        instant = None if highest is None else highest.allocated
        return (0, 0) if instant is None else (instant.bytes, instant.at_unix_ns - self._started_unix_ns)

    @property
    def resident_peak_bytes(self) -> int:
        return max((one.resident.bytes for one in self.run.machines if one.resident is not None), default=0)

    @property
    def curve(self) -> LiveCurve:
        """The sum of allocated bytes since the recording of the first process began."""
        curve = LiveCurve()
        if self.run.highest is not None:
            at_unix_ns, allocated = self.run.highest.allocated_over_time
            curve.append(at_unix_ns - self._started_unix_ns, allocated)
        return curve

    @property
    def _started_unix_ns(self) -> int:
        return int(self._processes[0].header["started_unix_ns"])

    @property
    def duration_ns(self) -> int:
        """How long the first process has been recorded, or would have been, had it not ended."""
        return time.monotonic_ns() - int(self._processes[0].header["started_ns"])

    # Rows

    @property
    def folder(self) -> str:
        """The working directory of the first process at the start of its recording."""
        return self._processes[0].folder

    def source(self, frame: Frame) -> str:
        """The text of a line of `lines()`; "" if it is unknown."""
        process = self._has_line.get((frame.file, frame.line))
        return "" if process is None else process.source(frame)

    def set_marker(self) -> None:
        """From now on growth is counted from this moment: of all processes, and of those that are shown alone, too."""
        self.read()
        self.marker_ns = self.duration_ns
        for process in self._detailed:
            process.set_marker()
        self._at_marker = {one: one.allocated_bytes for one in self.running if one not in self._detailed}

    def lines(self, *, growth: bool) -> list[Row]:
        """As of one process. Where the same line is in several, it has the sum."""

        def of_one(process: LiveProcess) -> list[Row]:
            rows = process.lines(growth=growth)
            for row in rows:
                if row.frame is not None:
                    self._has_line.setdefault((row.frame.file, row.frame.line), process)
            return rows

        return self._summed(of_one, growth=growth)

    def threads(self, *, growth: bool) -> list[Row]:
        """Those of each process by themselves."""

        def of_one(one: LiveProcess) -> list[Row]:
            return [replace(row, name=_in_process(one, row.name)) for row in one.threads(growth=growth)]

        return self._summed(of_one, growth=growth)

    def kinds(self, *, growth: bool) -> list[Row]:
        return self._summed(lambda one: one.kinds(growth=growth), growth=growth)

    def stacks(self, *, growth: bool) -> Iterator[Stack]:
        """Those of each process by themselves, most first."""
        counted, _ = self._parts(growth=growth)
        of_each = [map(_named(one), one.stacks(growth=growth)) for one in counted]
        return heapq.merge(*of_each, key=lambda stack: -stack.bytes)

    def devices(self) -> tuple[DeviceMemory, ...]:
        """Those of each process by themselves."""
        return tuple(
            replace(device, name=f"{process.pid} {device.name}")
            for process in self._detailed
            for device in process.devices()
        )

    def _summed(self, rows_of: Callable[[LiveProcess], list[Row]], *, growth: bool) -> list[Row]:
        counted, rest = self._parts(growth=growth)
        found: dict[tuple[str, str, int], Row] = {}
        for process in counted:
            for row in rows_of(process):
                key = (row.name, row.frame.file, row.frame.line) if row.frame is not None else (row.name, "", 0)
                found[key] = _sum(found[key], row) if key in found else row
        rows = [*found.values()]
        if rest:
            held = sum(one.allocated_bytes - (self._at_marker.get(one, 0) if growth else 0) for one in rest)
            rows.append(Row(f"{len(rest):,} smaller {'process' if len(rest) == 1 else 'processes'}", None, held))
        return most_first(rows)

    def _parts(self, *, growth: bool) -> tuple[list[LiveProcess], list[LiveProcess]]:
        """The processes whose rows count, and others that run. Growth since a marker is known of those that were
        read in full at it, and of those that have begun since."""
        counted = [one for one in self._detailed if not (growth and one in self._at_marker)]
        return counted, [one for one in self.running if one not in counted]


def _was_read(process: LiveProcess) -> bool:
    """Read a process; False where that cannot be done, which its `problem` says."""
    with suppress(CaptureError):
        process.read()
    return process.is_read


def _in_process(process: LiveProcess, name: str) -> str:
    return f"process {process.pid} · {name}"


def _named(process: LiveProcess) -> Callable[[Stack], Stack]:
    return lambda stack: replace(stack, thread=_in_process(process, stack.thread or "no thread"))


def _sum(one: Row, other: Row) -> Row:
    error = math.ceil(math.hypot(one.standard_error_bytes, other.standard_error_bytes))
    blocks = None if one.blocks is None or other.blocks is None else one.blocks + other.blocks
    return replace(one, bytes=one.bytes + other.bytes, blocks=blocks, standard_error_bytes=error)
