"""One process whose recording goes on: what it holds now, or what that has grown by since a marker that the viewer
set."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hiwater._os.headline import OTHER_CODE
from hiwater._os.procfs import command_of, proportional_bytes, resident_bytes_of
from hiwater._os.signals import signal_name
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import Group, PathRows, rows_of_paths
from hiwater.capture import Capture, program, slices
from hiwater.capture.devices import DeviceMemory, read_devices
from hiwater.capture.follow import Follower
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.limits import suspects
from hiwater.capture.paths import Frame, Ints, sum_at
from hiwater.capture.process import STATE_FAILED, STATE_RECORDING, is_waiting_child
from hiwater.capture.snapshot import Holdings, Snapshot, Stacks
from hiwater.capture.tables import Tables
from hiwater.capture.timeline import allocated_bytes
from hiwater.capture.untouched import untouched_of
from hiwater.errors import CaptureError, ProcessNotReadable

_CURVE_SAMPLES = 4096
_WAITING_SECONDS = 10.0  # between two questions to the kernel about a process that waits


def _overhead_bytes(header: Mapping[str, Any]) -> int:
    return int(header.get("overhead_last_bytes", header["overhead_bytes"]))


@dataclass(frozen=True, slots=True)
class Row:
    """What a line, a group of lines, a thread or a kind holds now, or has grown by. `frame` is None for what is no
    line of source, and `blocks` where nobody counts them."""

    name: str
    frame: Frame | None
    bytes: int
    blocks: int | None = None
    standard_error_bytes: int = 0


class LiveCurve:
    """Live bytes over time: int64 arrays of at most 4,096 samples, each the highest of its interval."""

    def __init__(self) -> None:
        self.at_ns: Ints = np.zeros(0, np.int64)
        self.bytes: Ints = np.zeros(0, np.int64)
        self._seen = 0

    def extend(self, tables: Tables) -> None:
        """Add the samples that have come since the last call."""
        added = tables["timeline"][self._seen :]
        self._seen += len(added)
        self.append(added["at_ns"].astype(np.int64), allocated_bytes(added))

    def append(self, at_ns: Ints, allocated: Ints) -> None:
        """Add samples, ascending in time."""
        self.at_ns, self.bytes = np.append(self.at_ns, at_ns), np.append(self.bytes, allocated)
        while len(self.bytes) > _CURVE_SAMPLES:
            even = len(self.bytes) // 2 * 2
            pairs = np.maximum(self.bytes[:even:2], self.bytes[1:even:2])
            self.bytes, self.at_ns = np.append(pairs, self.bytes[even:]), self.at_ns[::2]


class LiveProcess:
    """One recorded process. `read_sums()` reads the header of its capture, `read()` all that has changed."""

    tables: Tables
    now: Snapshot
    sources: Sources

    def __init__(self, follower: Follower, facts: Mapping[str, str]) -> None:
        self._follower = follower
        self._header: Mapping[str, Any] = follower.header
        self.facts = facts
        self._of_kernel: tuple[float, int, int] | None = None  # when it was asked; resident memory and PSS then
        self._capture: Capture | None = None
        self._is_capture_old = True
        self._marker: tuple[int, Ints, Ints] | None = None  # when, and bytes and blocks of each account
        self.is_running = True
        """Whether the next reading may differ from the last."""
        argv = program.arguments(facts.get("argv", "[]"))
        if not argv and follower.is_alive:  # else its number may be another's by now
            argv = tuple(command_of(self.pid))
        self.command = " ".join(argv)
        self.problem = ""
        """Why the last reading failed: somebody truncated the capture, for example. The figures are those of the
        reading before. "" if it did not fail."""
        self._start_over()

    def _start_over(self) -> None:
        self.is_read = False
        """Whether all of it has been read. Until then there are sums alone."""
        self.curve = LiveCurve()
        self._grouped: tuple[tuple[int, ...], _Groups] | None = None
        self._is_read_to_its_end = False

    def forget(self) -> None:
        """Free the memory of what was read, except sums and the marker. The next `read()` reads all again."""
        if self.is_read:
            self._follower.start_over()
            self._start_over()
            del self.tables, self.now, self.sources

    def read_sums(self) -> None:
        """Read the header again, if the process still ran at the last reading."""
        if self.is_running:
            self.is_running = self._follower.is_alive  # asked first: what comes after the end is read, too
            self._is_capture_old = True
            with suppress(CaptureError), self._noting_problems():
                self._header = self._with_waiting(self._follower.read_header())

    def read(self) -> None:
        """Read what has changed. Raises CaptureError."""
        if self._is_read_to_its_end:
            return
        self.is_running = self._follower.is_alive
        with self._noting_problems():
            self.tables = self._follower.read()
        self._capture, self._is_capture_old = Capture(self.tables), False
        self._header = self._with_waiting(self.tables.header)
        self.now = slices.find_end(self.tables)
        self.curve.extend(self.tables)
        self._is_read_to_its_end = not self.is_running
        if not self.is_read:
            self.sources, self.is_read = Sources.of(self.tables), True

    def _with_waiting(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The header with what the kernel says of a forked child that waits from its first moments on: it has no
        recorder's thread, and its last sample is that of the fork."""
        if not (self.is_running and is_waiting_child(header, self.facts.get("started_by", ""))):
            return header
        now = time.monotonic()
        if self._of_kernel is None or now > self._of_kernel[0] + _WAITING_SECONDS:
            resident, proportional = resident_bytes_of(self.pid), None
            with suppress(ProcessNotReadable):
                proportional = proportional_bytes(self.pid, "pss")
            if not resident or not proportional:
                return header
            self._of_kernel = now, resident, proportional
        _, resident, proportional = self._of_kernel
        without = max(0, resident - _overhead_bytes(header))
        figures = {
            "resident_last_bytes": resident,
            "program_peak_bytes": max(without, program.program_peak_bytes(header)),
            "shared_excess_bytes": max(0, resident - proportional),
        }
        return {**header, **figures}

    @property
    def capture(self) -> Capture | None:
        """What the process held over time, as of the last reading that succeeded; None if none did."""
        if self._is_capture_old:
            with suppress(CaptureError), self._noting_problems():
                self._capture = Capture(self._follower.read_over_time())
            self._is_capture_old = False
        return self._capture

    def close(self) -> None:
        self._follower.close()

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except CaptureError as error:
            self.problem = error.problem
            raise
        self.problem = ""

    # Sums

    @property
    def header(self) -> Mapping[str, Any]:
        """The header of the capture, as of the last reading."""
        return self._header

    @property
    def pid(self) -> int:
        return int(self._header["pid"])

    @property
    def allocated_bytes(self) -> int:
        return max(0, int(self._header["live_bytes"]))

    @property
    def peak(self) -> tuple[int, int]:
        """The highest live bytes so far, and when that was, in nanoseconds since the recording began."""
        return slices.highest_so_far(self._header)

    @property
    def resident_bytes(self) -> int:
        """Resident memory without hiwater's own, at the recorder's last sample."""
        return max(0, int(self._header["resident_last_bytes"]) - _overhead_bytes(self._header))

    @property
    def shared_excess_bytes(self) -> int | None:
        """What other processes count of the resident pages that this one shares with them: RSS minus PSS. None where
        it is not known."""
        excess = int(self._header.get("shared_excess_bytes", -1))
        return excess if excess >= 0 else None

    @property
    def resident_peak_bytes(self) -> int:
        return program.program_peak_bytes(self._header)

    @property
    def duration_ns(self) -> int:
        """How long the process has been recorded. While it is, that is until now, though its last sample may be
        older: a process that has forked and then asks for no memory takes none."""
        if self._header["ended_ns"]:
            return int(self._header["ended_ns"])
        is_recorded = self.is_running and self._header["state"] == STATE_RECORDING
        until_now = time.monotonic_ns() - int(self._header["started_ns"]) if is_recorded else 0
        return max(int(self._header["heartbeat_ns"]), until_now)

    @property
    def ended(self) -> str:
        """How the recording ended, in a few words; "" while it goes on."""
        header = self._header
        if header["state"] == STATE_FAILED:
            return "recording has failed"
        if header.get("end_signal"):
            return f"was killed ({signal_name(int(header['end_signal']))})"
        if header["state"] != STATE_RECORDING or header["ended_ns"] != 0:
            return "recording has ended" if header["exit_code"] == -1 else f"ended with exit code {header['exit_code']}"
        return "" if self.is_running else "was killed"

    @property
    def suspects(self) -> list[str]:
        """What a killed process may have died of, in words."""
        return [] if self.is_running else suspects(self.tables)

    # Rows

    @property
    def folder(self) -> str:
        """The working directory at the start of the recording."""
        return self.facts.get("cwd", "")

    def source(self, frame: Frame) -> str:
        """The text of a line; "" if it is unknown."""
        return self.sources.line(frame.file, frame.line)

    @property
    def marker_ns(self) -> int | None:
        """When the marker was set, in nanoseconds since the recording began."""
        return None if self._marker is None else self._marker[0]

    def set_marker(self) -> None:
        """From now on growth is counted from the last reading."""
        self._marker = self.now.at_ns, self.now.bytes, self.now.blocks

    def holdings(self, *, growth: bool) -> Holdings:
        """What call paths hold now, or have grown by since the marker, most first. Without a marker everything is
        growth."""
        now = self.now
        if growth and self._marker is not None:
            _, held, blocks = self._marker
            now = replace(now, bytes=_less(now.bytes, held), blocks=_less(now.blocks, blocks))
        return now.holdings()

    def lines(self, *, growth: bool) -> list[Row]:
        """The user's own lines, each with all that it called, and what stands apart from them: imports, other code,
        memory never touched."""
        holdings, groups = self.holdings(growth=growth), self._groups()
        untouched = np.zeros(len(holdings.node), np.int64) if growth else untouched_of(groups.paths.untouched, holdings)
        index = groups.row_of_node[holdings.node]
        held, never = replace(holdings, bytes=holdings.bytes - untouched), replace(holdings, bytes=untouched)
        paths, summed = groups.paths, _Sums(held, index, len(groups.paths.rows))
        lines = [number for number, (group, _) in enumerate(paths.rows) if group.is_own_line]
        other = [number for number, (group, _) in enumerate(paths.rows) if group == Group.other]
        imports = [number for number, (group, _) in enumerate(paths.rows) if group == Group.imports]
        found = [summed.row(number, "", paths.rows[number][1]) for number in lines or other]
        apart = [("imports", imports), (OTHER_CODE, other if lines else [])]
        found += [summed.all_of(numbers, name) for name, numbers in apart]
        if untouched.any():
            found.append(Row("never touched, so not in RAM", None, never.total_bytes, 0))
        return most_first(found)

    def threads(self, *, growth: bool) -> list[Row]:
        holdings, groups = self.holdings(growth=growth), self._groups()
        summed = _Sums(holdings, groups.thread_of_node[holdings.node], len(groups.threads))
        return most_first([summed.row(number, name or "no thread", None) for number, name in enumerate(groups.threads)])

    def kinds(self, *, growth: bool) -> list[Row]:
        holdings = self.holdings(growth=growth)
        summed = _Sums(holdings, holdings.kind, len(COUNTED_KINDS))
        return most_first([summed.row(number, name, None) for number, name in enumerate(COUNTED_KINDS)])

    def stacks(self, *, growth: bool) -> Stacks:
        return Stacks(self.tables.paths, self.holdings(growth=growth))

    def devices(self) -> tuple[DeviceMemory, ...]:
        return read_devices(self.tables)

    def _groups(self) -> _Groups:
        """The rows of call paths, made again only when there are new ones, or new residency snapshots."""
        tables, blocks = self.tables, self.tables.get("large_blocks")
        counts = (len(tables["nodes"]), len(tables["accounts"]), 0 if blocks is None else len(blocks))
        if self._grouped is None or self._grouped[0] != counts:
            self._grouped = counts, _Groups(tables)
        return self._grouped[1]


class _Groups:
    """For each call path its row and its thread."""

    def __init__(self, tables: Tables) -> None:
        node = tables.account_node
        self.paths: PathRows = rows_of_paths(tables, node, tables["accounts"]["live_bytes"].astype(np.int64))
        self.row_of_node: Ints = np.zeros(len(tables["nodes"]), np.int64)
        self.row_of_node[node] = self.paths.row
        self.threads, thread = tables.paths.threads(node)
        self.thread_of_node: Ints = np.zeros(len(tables["nodes"]), np.int64)
        self.thread_of_node[node] = thread


class _Sums:
    """Holdings summed by an index of theirs."""

    def __init__(self, holdings: Holdings, index: Ints, length: int) -> None:
        self._holdings = holdings
        columns = (holdings.bytes, holdings.blocks, holdings.sampled)
        self._bytes, self._blocks, self._sampled = (sum_at(length, index, values) for values in columns)

    def row(self, number: int, name: str, frame: Frame | None) -> Row:
        error = self._holdings.standard_error(int(self._sampled[number]))
        return Row(name, frame, int(self._bytes[number]), int(self._blocks[number]), error)

    def all_of(self, numbers: list[int], name: str) -> Row:
        error = self._holdings.standard_error(int(self._sampled[numbers].sum()))
        return Row(name, None, int(self._bytes[numbers].sum()), int(self._blocks[numbers].sum()), error)


def most_first(rows: list[Row]) -> list[Row]:
    """The rows that hold anything, largest first."""
    return sorted((row for row in rows if row.bytes), key=lambda row: -row.bytes)


def _less(now: Ints, before: Ints) -> Ints:
    """The difference of each account; those that are new held nothing before."""
    changed = now.copy()
    changed[: len(before)] -= before
    return changed
