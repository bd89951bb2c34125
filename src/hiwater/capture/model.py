"""The model of a capture: the process, its peak, its end, its timeline, and snapshots of any time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from hiwater import _registry
from hiwater._os.sizes import format_size
from hiwater.allocator_state import AllocatorState
from hiwater.capture import check, histories, opening, program
from hiwater.capture.comparison import Comparison
from hiwater.capture.devices import DeviceMemory, read_devices
from hiwater.capture.in_memory import LetGo
from hiwater.capture.limits import Pressure, SeenFromOutside, read_pressure, read_relatives, read_shared_excess
from hiwater.capture.markers import Marker, has_refusals, read_markers, read_refusals
from hiwater.capture.paths import Ints
from hiwater.capture.program import Process, Resident, Totals
from hiwater.capture.residency_snapshots import ResidencySnapshot, read_residency_snapshots
from hiwater.capture.slices import Slice, find_end, find_peak, find_refusal, find_window, of_slice, read_slices
from hiwater.capture.snapshot import Snapshot
from hiwater.capture.tables import Tables, whole_number
from hiwater.capture.timeline import ScopeSpan, Timeline, WatchedProcess, read_processes, read_scopes, read_timeline
from hiwater.capture.untouched import untouched_bytes
from hiwater.errors import BadRequest, CorruptCapture, ExtraMissing, HiwaterError, MomentOutOfRange

_Value = TypeVar("_Value")


def _of_tables(function: Callable[[Tables], _Value]) -> cached_property[_Value]:
    """An attribute of Capture that is computed from its tables at the first access."""
    return cached_property(lambda capture: function(capture.tables))


class Capture(LetGo):
    """One recorded process. `hiwater.open()` makes it and reads the whole file; the file is not read again.

    Of a run of many processes, `hiwater.open_run()` keeps the tables of the last ones that were used, and reads those
    of others again.
    """

    figures = (
        "process", "resident", "totals", "is_timeline", "lost_events", "shortcomings", "misses_calls", "peak_bytes",
        "peak_error_bytes", "peak_untouched_bytes", "end_bytes", "slices", "timeline", "pressure", "shared_excess",
        "relatives", "was_refused", "processes", "scopes", "device", "live_before_bytes", "reserved_peak_bytes",
        "contradictions", "died_unread",
    )  # fmt: skip

    def __repr__(self) -> str:
        resident = f"{format_size(self.resident.program_peak_bytes)} resident"
        peaks = resident if self.is_timeline else f"{format_size(self.peak.allocated_bytes)} allocated, {resident}"
        return f"<Capture {str(self.path)!r} of process {self.process.pid}, {self.process.ended}: peak {peaks}>"

    process: cached_property[Process] = _of_tables(program.read_process)
    """The program, and how it ended."""
    resident: cached_property[Resident] = _of_tables(program.read_resident)
    """Resident memory of the process: at its peak, at the start and at the end."""
    totals: cached_property[Totals] = _of_tables(program.read_totals)
    """Allocations and frees of the whole recording."""
    is_timeline: cached_property[bool] = _of_tables(program.is_timeline)
    """Whether the process was only watched from outside. Such a capture has no stacks and no allocations."""
    lost_events: cached_property[int] = _of_tables(lambda tables: int(tables.header["lost_events"]))
    """The number of events that could not be recorded: figures may be wrong by their bytes."""
    shortcomings: cached_property[list[str]] = _of_tables(program.shortcomings)
    """Sentences on what the recorder could not see in this process."""
    misses_calls: cached_property[bool] = _of_tables(lambda tables: "calls_not_recorded" in tables.facts)
    """Whether allocator calls of some modules could not be recorded: allocated figures are then lower bounds."""

    def note_life(self, until_unix_ns: int) -> None:
        """The process lived until this time at least, in nanoseconds of the wall clock, as its parent or the kernel
        knows."""
        lasted = until_unix_ns - self.process.started_unix_ns
        self.process = replace(self.process, duration_ns=max(lasted, self.process.duration_ns))

    def note_resident(self, resident_bytes: int) -> None:
        """Another process read this for the resident memory of this one, of which nothing was read at its end."""
        least = resident_bytes - self.resident.overhead_bytes
        self.resident = replace(
            self.resident,
            program_peak_bytes=max(least, self.resident.program_peak_bytes),
            peak_bytes=max(resident_bytes, self.resident.peak_bytes),
        )

    @cached_property
    def died_unread(self) -> bool:
        """Whether the process was killed, and nobody read its memory at its end: its resident peak may be higher."""
        return program.died_unread(self.tables)

    def overhead_at(self, at_ns: Ints) -> Ints:
        """What of resident memory was hiwater's at these times since the recording began; before, nothing. A child
        shares hiwater's code with its parent, whose it counts as: all of it after a fork, that of files where it was
        started. Such figures can be added up, as the parts of shared pages can."""
        timeline = self.timeline
        if not timeline.overhead_bytes.any():
            overhead = np.full(len(at_ns), self.resident.overhead_end_bytes, np.int64)
        else:
            overhead = timeline.overhead_bytes[np.maximum(0, np.searchsorted(timeline.at_ns, at_ns, side="right") - 1)]
        shared = {"fork": "hiwater_code_bytes", "exec": "hiwater_code_file_bytes"}.get(self.process.started_by, "")
        return np.where(at_ns < 0, 0, np.maximum(0, overhead - (whole_number(self.facts.get(shared, "")) or 0)))

    @property
    def own_code(self) -> str:
        """What counts as the user's own code, in words; "" for a capture that does not say."""
        words = self.facts.get("own_code", "")
        return ", ".join([words, *(f"package {name} (--own)" for name in self.also_own)]) if words else ""

    # Snapshots

    peak: cached_property[Snapshot] = _of_tables(find_peak)
    """The moment at which the sum of the counted kinds was highest. A recording inside another one has the peak of
    its own time."""
    end: cached_property[Snapshot] = _of_tables(find_end)
    """The live blocks when the recording ended, or when it was last written to."""
    peak_bytes: cached_property[int] = cached_property(lambda capture: capture.peak.allocated_bytes)
    """Allocated bytes at the peak."""
    peak_error_bytes: cached_property[int] = cached_property(lambda capture: capture.peak.standard_error_bytes)
    """The most that the standard error of `peak_bytes` can be; 0 when every block was recorded."""
    peak_untouched_bytes: cached_property[int] = cached_property(lambda capture: untouched_bytes(capture.peak))
    """The part of `peak_bytes` that was never touched, and is not in RAM, as far as residency snapshots tell."""
    end_bytes: cached_property[int] = cached_property(lambda capture: capture.end.allocated_bytes)
    """Allocated bytes at the end."""
    slices: cached_property[tuple[Slice, ...]] = _of_tables(read_slices)
    """All slices in time, the open one last."""

    def of_slice(self, piece: Slice) -> Snapshot:
        """The snapshot at the peak of this slice."""
        return of_slice(self.tables, piece)

    def window(self, from_seconds: float, to_seconds: float) -> Snapshot:
        """The snapshot at the highest peak of the slices between `from_seconds` and `to_seconds`. Raises
        MomentOutOfRange."""
        return find_window(self.tables, self.slices, from_seconds, to_seconds)

    @cached_property
    def oom(self) -> Snapshot:
        """The live blocks at the last refused request that has a snapshot. Raises MomentOutOfRange."""
        found = find_refusal(self.tables, self.slices, {marker.at_ns for marker in self.refusals})
        if found is not None:
            return found
        if self.device_refusals:
            raise MomentOutOfRange(
                "RAM was never refused to this program, but memory of a device was", "add --kind device"
            )
        raise MomentOutOfRange("memory was never refused to this program", "look at the peak or the end instead")

    def snapshot(self, at: str | float) -> Snapshot:
        """The snapshot that `at` names: "peak", "end", "oom", seconds since the start, or a window "T1:T2" in seconds.

        Raises BadRequest for anything else, MomentOutOfRange for a time outside the recording.
        """
        if at in ("peak", "end", "oom"):
            named: Snapshot = getattr(self, str(at))
            return named
        first, _, last = str(at).partition(":")
        try:
            return self.window(float(first), float(last or first))
        except ValueError:
            raise BadRequest(f"{at!r} is none of peak, end, oom, SECONDS, T1:T2", "give one of these") from None

    # Time

    timeline: cached_property[Timeline] = _of_tables(read_timeline)
    """Samples of resident and live memory over the recording."""
    residency_snapshots: cached_property[tuple[ResidencySnapshot, ...]] = _of_tables(read_residency_snapshots)
    """Residency snapshots, ascending in time: at new heights of resident memory, and at the end."""
    devices: cached_property[tuple[DeviceMemory, ...]] = _of_tables(read_devices)
    """The accelerators that the program used."""
    pressure: cached_property[tuple[Pressure, ...]] = _of_tables(read_pressure)
    """The process's memory and its limits over time."""
    shared_excess: cached_property[tuple[Ints, Ints, Ints]] = _of_tables(read_shared_excess)
    """The times of the process's own readings, what other processes count of its anonymous memory, too, and its private
    bytes."""
    relatives: cached_property[dict[int, SeenFromOutside]] = _of_tables(read_relatives)
    """By process number, the readings that this process took of all processes of its run, itself among them."""
    markers: cached_property[tuple[Marker, ...]] = _of_tables(read_markers)
    """Forks, refused requests, exec, full garbage collections, and the markers that the program named."""
    refusals: cached_property[tuple[Marker, ...]] = _of_tables(read_refusals)
    """The refused requests for memory, at most the first 10,000."""
    was_refused: cached_property[bool] = _of_tables(has_refusals)
    """Whether a request for memory was refused."""
    processes: cached_property[tuple[WatchedProcess, ...]] = _of_tables(read_processes)
    """The processes that `hiwater sample` watched, the target first; none in a capture of the engine."""
    scopes: cached_property[tuple[ScopeSpan, ...]] = _of_tables(read_scopes)
    """The scopes and phases of the program, in the order of their ends."""

    # Memory of devices

    device: cached_property[str | None] = _of_tables(program.device)
    """The device ("cuda:0") whose memory this capture is about; None for a capture of a process."""
    allocator: cached_property[AllocatorState | None] = _of_tables(histories.allocator)
    """The state of the device's allocator at the end; None if unknown."""
    live_before_bytes: cached_property[int] = _of_tables(lambda tables: tables.number("live_before_bytes") or 0)
    """In a device's history: the bytes that were allocated before it began; 0 for a complete history."""
    reserved_peak_bytes: cached_property[int | None] = _of_tables(lambda tables: tables.number("reserved_peak_bytes"))
    """The peak of the bytes that a device's allocator reserved from the driver; None if unknown."""
    oom_report: cached_property[dict[str, Any] | None] = _of_tables(histories.oom_report)
    """The report that the program wrote when a refused request for device memory ended it
    (`hiwater.contrib.torch.guard`); None without one."""

    @cached_property
    def device_histories(self) -> tuple[Capture, ...]:
        """The histories of device memory in the recording, each a capture with a peak and a timeline of its own.

        Raises CorruptCapture if they are damaged, ExtraMissing if reading one needs a package that is not installed.
        """
        return tuple(Capture(Tables(contents)) for contents in histories.of_recording(self.tables))

    @cached_property
    def readable_histories(self) -> tuple[Capture, ...]:
        """The same, or none if they cannot be read; `problems()` then says so, and the figures of host memory can
        still be shown."""
        try:
            return self.device_histories
        except HiwaterError:
            return ()

    @cached_property
    def device_refusals(self) -> tuple[Marker, ...]:
        """Markers of refused requests for device memory, in this recording's time; `kind` names the device."""
        found = []
        for device in self.readable_histories:
            shift = device.process.started_unix_ns - self.process.started_unix_ns
            kind = f"{device.device} out of memory"
            found += [replace(one, at_ns=max(0, one.at_ns + shift), kind=kind) for one in device.refusals]
        return tuple(sorted(found, key=lambda marker: marker.at_ns))

    def of_kind(self, kind: str) -> tuple[Capture, ...]:
        """The captures that have memory of a kind: for "device" those of `device_histories`, if there are any;
        otherwise this one."""
        return (self.device_histories if kind == "device" else ()) or (self,)

    def diff(
        self, after: Capture | str | os.PathLike[str], *, at: str | float = "peak", kind: str = "all", by: str = "stack"
    ) -> Comparison[Capture]:
        """The diff from this capture to `after`, a capture or the path of one: at the peaks by default, or at `at`.

        `kind` is "all", "python", "native", "mapping", "device" or "shared"; `by` is "stack", "function", "line",
        "file" or "module". Raises BadRequest for other values, MomentOutOfRange, and the exceptions of
        `hiwater.open()`.
        """
        other = after if isinstance(after, Capture) else Capture(opening.read(after))
        compared: Comparison[Capture] = _registry.load(_registry.COMPARE)(self, other, at=at, kind=kind, by=by)
        return compared

    def problems(self) -> list[str]:
        """Sentences on contradictions in this capture; empty if it is consistent."""
        return list(self.contradictions)

    @cached_property
    def contradictions(self) -> list[str]:
        """What `problems()` returns, computed once."""
        found = check.problems(self.tables, self.slices, self.peak, self.end)
        try:
            return found + [f"{one.device}: {problem}" for one in self.device_histories for problem in one.problems()]
        except CorruptCapture as error:
            return [*found, f"what GPU libraries left in it cannot be read ({error.problem})"]
        except ExtraMissing:
            return found

    def check(self) -> None:
        """Raise CorruptCapture with the first of `problems()`, if there is one."""
        found = self.problems()
        if found:
            problem = f"the capture contradicts itself: {found[0]}"
            raise CorruptCapture(problem, "do not trust its figures; record again")
