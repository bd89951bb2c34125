"""All processes of a run that goes on, together: what they hold now, or what that has grown by since a marker that the viewer set."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from hiwater.analysis.live import LiveCurve, LiveProcess, Row, most_first
from hiwater.capture.devices import DeviceMemory
from hiwater.capture.paths import Frame
from hiwater.capture.snapshot import Stack
from hiwater.errors import CaptureError

MOST_PROCESSES = 64
"""So many are read in full: those that held most when there was room for them. Of others there are sums."""


class AllProcesses:
    """The processes of a run that run, as one. `read()` before anything else. Peaks and the curve are those of the readings: what the processes
    held before the first one is not in them. Times are nanoseconds since the recording of the first process began."""

    def __init__(self, processes: list[LiveProcess]) -> None:
        """`processes` is the list of the run, which grows."""
        self._processes = processes
        self._detailed: list[LiveProcess] = []
        self._has_line: dict[tuple[str, int], LiveProcess] = {}
        self._at_marker: dict[LiveProcess, int] = {}  # allocated bytes of those that were not read in full then
        self.marker_ns: int | None = None
        self.curve = LiveCurve()
        self.peak = (0, 0)
        """The highest allocated bytes of all readings, and when that was."""
        self.resident_peak_bytes = 0

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
        self._add_reading()

    def _add_reading(self) -> None:
        at_ns, allocated = self.duration_ns, self.allocated_bytes
        self.curve.append([at_ns], [allocated])
        self.peak = max(self.peak, (allocated, at_ns), key=lambda pair: pair[0])
        self.resident_peak_bytes = max(self.resident_peak_bytes, self.resident_bytes)

    # Sums

    @property
    def running(self) -> list[LiveProcess]:
        return [process for process in self._processes if process.is_running]

    @property
    def allocated_bytes(self) -> int:
        return sum(process.allocated_bytes for process in self.running)

    @property
    def resident_bytes(self) -> int:
        """Resident memory without hiwater's tables. Pages that processes share count once where it is known how many these are."""
        return sum(max(0, one.resident_bytes - (one.shared_excess_bytes or 0)) for one in self.running)

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
        return self._summed(
            lambda one: [replace(row, name=_in_process(one, row.name)) for row in one.threads(growth=growth)], growth=growth
        )  # fmt: skip

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
        """The processes whose rows count, and others that run. Growth since a marker is known of those that were read in full at it, and of
        those that have begun since."""
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
