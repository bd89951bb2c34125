"""A capture as its readers think of it: the process, its peaks, its end, its timeline, and any time between."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from hiwater import _registry
from hiwater.allocator_state import AllocatorState
from hiwater.capture import check, histories, opening, program
from hiwater.capture.comparison import Comparison
from hiwater.capture.devices import DeviceMemory, read_devices
from hiwater.capture.limits import Pressure, read_pressure
from hiwater.capture.markers import Marker, read_markers
from hiwater.capture.program import Process, Resident, Totals
from hiwater.capture.residency_snapshots import ResidencySnapshot, read_residency_snapshots
from hiwater.capture.slices import Slice, find_end, find_peak, find_refusal, find_window, of_slice, read_slices
from hiwater.capture.snapshot import Snapshot
from hiwater.capture.tables import Tables
from hiwater.capture.timeline import ScopeSpan, Timeline, WatchedProcess, read_processes, read_scopes, read_timeline
from hiwater.errors import BadRequest, CorruptCapture, ExtraMissing, HiwaterError, MomentOutOfRange

_Value = TypeVar("_Value")


def _of_tables(function: Callable[[Tables], _Value]) -> cached_property[_Value]:
    """An attribute of Capture that is computed from its tables at the first access."""
    return cached_property(lambda capture: function(capture.tables))


class Capture:
    """One recorded process. Made by `hiwater.open`; reading is over when it returns, the file is not read again."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        """The decoded tables, for what no attribute shows."""
        self.path: Path = tables.path
        self.facts: dict[str, str] = tables.facts
        """What the recorder was told about the program, as text."""

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r} of process {self.process.pid}, {self.process.ended}>"

    process: cached_property[Process] = _of_tables(program.read_process)
    """What ran, and how it ended."""
    resident: cached_property[Resident] = _of_tables(program.read_resident)
    """Resident memory of the process: its peak, and what it was at the start and at the end."""
    totals: cached_property[Totals] = _of_tables(program.read_totals)
    """Allocations and frees of the whole recording."""
    is_timeline: cached_property[bool] = _of_tables(program.is_timeline)
    """Whether the process was only watched from outside: there are no stacks, and nothing is known of what it allocated."""
    lost_events: cached_property[int] = _of_tables(lambda tables: int(tables.header["lost_events"]))
    """Events that could not be recorded: figures may be off by what they were about."""
    shortcomings: cached_property[list[str]] = _of_tables(program.shortcomings)
    """What the recorded process did not let the recorder see, in words."""
    misses_calls: cached_property[bool] = _of_tables(lambda tables: "calls_not_recorded" in tables.facts)
    """Whether some modules' calls of the allocator could not be recorded: what is allocated is at least what is said."""

    # Snapshots

    peak: cached_property[Snapshot] = _of_tables(find_peak)
    """When the sum of the counted kinds was highest: in the whole recording, or, in a recording inside another one, in its own time."""
    end: cached_property[Snapshot] = _of_tables(find_end)
    """What was live when the recording ended, or when it was last written to."""
    slices: cached_property[tuple[Slice, ...]] = _of_tables(read_slices)
    """All slices in time, the open one last."""

    def of_slice(self, piece: Slice) -> Snapshot:
        """What every account held when this slice was highest."""
        return of_slice(self.tables, piece)

    def window(self, from_seconds: float, to_seconds: float) -> Snapshot:
        """The highest of the slices that touch the time from `from_seconds` to `to_seconds`. Raises MomentOutOfRange."""
        return find_window(self.tables, self.slices, from_seconds, to_seconds)

    @cached_property
    def oom(self) -> Snapshot:
        """What was live when memory was last refused, of the refusals at which that was noted. Raises MomentOutOfRange."""
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

        Raises BadRequest for anything else, MomentOutOfRange for a time the recording does not have.
        """
        if at in ("peak", "end", "oom"):
            named: Snapshot = getattr(self, str(at))
            return named
        first, _, last = str(at).partition(":")
        try:
            return self.window(float(first), float(last or first))
        except ValueError:
            raise BadRequest(f"{at!r} is none of peak, end, oom, SECONDS, T1:T2", "name a moment so") from None

    # Time

    timeline: cached_property[Timeline] = _of_tables(read_timeline)
    """Samples of resident and live memory over the recording."""
    residency_snapshots: cached_property[tuple[ResidencySnapshot, ...]] = _of_tables(read_residency_snapshots)
    """Where resident memory was, in time: whenever it reached a new height, and at the end."""
    devices: cached_property[tuple[DeviceMemory, ...]] = _of_tables(read_devices)
    """The accelerators that the program used."""
    pressure: cached_property[tuple[Pressure, ...]] = _of_tables(read_pressure)
    """How near the process was to its limits, over time."""
    markers: cached_property[tuple[Marker, ...]] = _of_tables(read_markers)
    """Forks, refused requests for memory, exec, and full garbage collections. A marker of collections says how many there were since the
    sample before it, at most 10 ms earlier, and has the time of the first sample after them."""
    processes: cached_property[tuple[WatchedProcess, ...]] = _of_tables(read_processes)
    """The processes that were watched from outside, the target first; none in a capture the engine made."""
    scopes: cached_property[tuple[ScopeSpan, ...]] = _of_tables(read_scopes)
    """Named intervals that the program told of, as they ended."""

    @cached_property
    def refusals(self) -> tuple[Marker, ...]:
        """The requests for memory that were refused: the first 10,000."""
        return tuple(marker for marker in self.markers if marker.kind == "out of memory")

    # Memory of devices

    device: cached_property[str | None] = _of_tables(program.device)
    """The device ("cuda:0") whose memory this capture is about; None for a capture of a process."""
    allocator: cached_property[AllocatorState | None] = _of_tables(histories.allocator)
    """What the allocator of the device held at the end; None where that is not known."""
    live_before_bytes: cached_property[int] = _of_tables(lambda tables: tables.number("live_before_bytes") or 0)
    """Of a device's history: what was allocated when it began. 0 where all of it is known."""
    reserved_peak_bytes: cached_property[int | None] = _of_tables(lambda tables: tables.number("reserved_peak_bytes"))
    """The most that a device's allocator had reserved from the driver; None where that is not known."""
    oom_report: cached_property[dict[str, Any] | None] = _of_tables(histories.oom_report)
    """What the program wrote when memory of a device was refused and ended it (`hiwater.contrib.torch.guard`); None where it did not."""

    @cached_property
    def device_histories(self) -> tuple[Capture, ...]:
        """The histories of devices' memory that the recording has with it, each a capture with a peak and a timeline of its own.

        Raises CorruptCapture where they are damaged, ExtraMissing where reading one needs a package that is not installed.
        """
        return tuple(Capture(Tables(contents)) for contents in histories.of_recording(self.tables))

    @cached_property
    def readable_histories(self) -> tuple[Capture, ...]:
        """The same, or none where they cannot be read, which `problems()` then says: what is known of RAM is worth showing all the same."""
        try:
            return self.device_histories
        except HiwaterError:
            return ()

    @cached_property
    def device_refusals(self) -> tuple[Marker, ...]:
        """Where memory of a device was refused, in this recording's own time; `kind` names the device."""
        found = []
        for device in self.readable_histories:
            shift = device.process.started_unix_ns - self.process.started_unix_ns
            kind = f"{device.device} out of memory"
            found += [replace(one, at_ns=max(0, one.at_ns + shift), kind=kind) for one in device.refusals]
        return tuple(sorted(found, key=lambda marker: marker.at_ns))

    def of_kind(self, kind: str) -> tuple[Capture, ...]:
        """The captures to ask for memory of a kind: for "device" those of `device_histories`, where there are any; for all else this one."""
        return (self.device_histories if kind == "device" else ()) or (self,)

    def diff(
        self, after: Capture | str | os.PathLike[str], *, at: str | float = "peak", kind: str = "all", by: str = "stack"
    ) -> Comparison[Capture]:
        """What grew from this capture to `after`, a capture or the path of one: peak against peak unless `at` says otherwise.

        `kind` is "all", "python", "native", "mapping", "device" or "shared"; `by` is "stack", "function", "line", "file" or "module".
        Raises BadRequest for other words, MomentOutOfRange, and what `hiwater.open` raises.
        """
        other = after if isinstance(after, Capture) else Capture(opening.read(after))
        compared: Comparison[Capture] = _registry.load(_registry.COMPARE)(self, other, at=at, kind=kind, by=by)
        return compared

    def problems(self) -> list[str]:
        """What contradicts itself in this capture, in words; empty for a sound one."""
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
