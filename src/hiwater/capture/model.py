"""A capture as its readers think of it: the process, its peaks, its end, its timeline, and any time between."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hiwater import _registry
from hiwater.allocator_state import AllocatorState
from hiwater.capture import (
    attachments,
    cells,
    check,
    container,
    devices,
    histories,
    limits,
    markers,
    process,
    program,
    residency_snapshots,
    slices,
    timeline,
)
from hiwater.capture.container import read_contents
from hiwater.capture.format import DEVICE_HISTORY
from hiwater.capture.markers import Marker
from hiwater.capture.paths import Paths
from hiwater.capture.program import Process, Resident, Totals
from hiwater.capture.reader import Contents
from hiwater.capture.residency_snapshots import ResidencySnapshot
from hiwater.capture.slices import Slice
from hiwater.capture.snapshot import Frame, Ints, Snapshot
from hiwater.capture.timeline import ScopeSpan, Timeline, WatchedProcess
from hiwater.errors import BadRequest, CorruptCapture, HiwaterError

if TYPE_CHECKING:
    from hiwater.analysis.diff import Comparison

_LIVE_TRIES = 5


class Capture:
    """One recorded process. Made by `hiwater.open`; reading is over when it returns, the file is not read again."""

    def __init__(self, contents: Contents, *, is_alive: bool = False) -> None:
        self.path: Path = contents.path
        self.header = contents.header
        self.tables = contents.tables
        self.is_alive = is_alive  # the process still writes it
        self.cells = cells.read(self._texts())
        if self.cells:
            self.tables = cells.without_kernel(self)
            self.__dict__.pop("paths", None)  # those made on the way had the kernel's frames
        accounts = self.tables["accounts"]
        self.account_node: Ints = accounts["node"].astype(np.int64)
        self.account_kind: Ints = accounts["kind"].astype(np.int64)
        self.account_is_sampled: npt.NDArray[np.bool_] = accounts["sampled"] != 0

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read a capture; one that is still being written is read again when it changed under us. `all.hiw/NAME` is one of a
        merged one.

        Raises BadRequest for a merged capture of more than one, MissingCapture, ForeignFile, NewerCapture, TruncatedCapture or CorruptCapture.
        """
        for attempt in range(_LIVE_TRIES):
            try:
                return cls._open_once(path)
            except CorruptCapture:
                if attempt + 1 == _LIVE_TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    @classmethod
    def _open_once(cls, path: str | os.PathLike[str]) -> Self:
        return cls._of(read_contents(path))

    @classmethod
    def open_all(cls, path: str | os.PathLike[str]) -> tuple[Self, ...]:
        """Read the capture at `path`, or all that a merged one holds, in its order. Raises what `open` raises."""
        if histories.is_history(path):
            return tuple(cls._of(contents) for contents in histories.read_all(path))
        if not container.is_container(path):
            return (cls.open(path),)
        return tuple(cls._of(container.read_member(path, member)) for member in container.members(path))

    @classmethod
    def _of(cls, contents: Contents) -> Self:
        return cls(contents, is_alive=process.is_being_written(contents.header))

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r} of process {self.process.pid}, {self.process.ended}>"

    # Names

    @cached_property
    def _string_bytes(self) -> bytes:
        return bytes(self.tables["string_bytes"])

    def string(self, number: int) -> str:
        """One interned string; "" for 0. Bytes that are not UTF-8 come as U+FFFD. The file of a notebook's cell is that cell's name."""
        text = self.recorded_string(number)
        cell = self.cells.get(text)
        return cell.name if cell is not None else text

    def recorded_string(self, number: int) -> str:
        """The same as the recorder saw it."""
        if number >= len(self.tables["strings"]):
            return ""
        record = self.tables["strings"][number]
        begin = int(record["offset"])
        return self._string_bytes[begin : begin + int(record["length"])].decode("utf-8", "replace")

    @cached_property
    def recorded_window(self) -> tuple[int, int] | None:
        """Of a recording that was made inside another one, and is a copy of that: where it began and ended, in nanoseconds."""
        first, _, last = self.facts.get("window_ns", "").partition(":")
        start, end = _number(first), _number(last)
        return (start, end) if start is not None and end is not None else None

    @cached_property
    def facts(self) -> dict[str, str]:
        """What the recorder was told about the program, as text."""
        return {key: value for key, value in self._texts() if not cells.is_cell(key)}

    def _texts(self) -> list[tuple[str, str]]:
        return [
            (self.recorded_string(int(fact["key"])), self.recorded_string(int(fact["value"])))
            for fact in self.tables["facts"]
        ]

    @cached_property
    def paths(self) -> Paths:
        """The call paths, each made when it is looked at."""
        return Paths(self)

    def path_of(self, node: int) -> tuple[str, tuple[Frame, ...]]:
        """Thread name and frames, root first, of one node."""
        return self.paths.thread(node), self.paths.frames(node)

    @property
    def is_thread_root(self) -> npt.NDArray[np.bool_]:
        """For each node, whether it stands for a thread and not for a frame."""
        return self.paths.is_thread

    # The process

    @cached_property
    def process(self) -> Process:
        return program.process(self, is_alive=self.is_alive)

    @property
    def is_timeline(self) -> bool:
        """Whether the process was only watched from outside: there are no stacks, and nothing is known of what it allocated."""
        return self.facts.get("recorder") == "sample"

    @property
    def device(self) -> str | None:
        """The device ("cuda:0") whose memory this capture is about; None for a capture of a process."""
        return self.facts.get("device") if self.facts.get("recorder") == DEVICE_HISTORY else None

    @cached_property
    def allocator(self) -> AllocatorState | None:
        """What the allocator of the device held at the end; None where that is not known."""
        return AllocatorState.from_json(self.facts.get("allocator_state", ""))

    @property
    def live_before_bytes(self) -> int:
        """Of a device's history: what was allocated when it began. 0 where all of it is known."""
        return _number(self.facts.get("live_before_bytes", "")) or 0

    @property
    def reserved_peak_bytes(self) -> int | None:
        """The most that a device's allocator had reserved from the driver; None where that is not known."""
        return _number(self.facts.get("reserved_peak_bytes", ""))

    @cached_property
    def device_histories(self) -> tuple[Self, ...]:
        """The histories of devices' memory that the recording has with it, each a capture with a peak and a timeline of its own.

        Raises CorruptCapture where they are damaged, ExtraMissing where reading one needs a package that is not installed.
        """
        told: dict[str, str] = {name: self.facts[name] for name in ("host", "cwd", "rank") if name in self.facts}
        name = self.facts.get("program") or " ".join(program.name_of(self.process.argv)).rsplit("/", 1)[-1]
        found = histories.attached_to(Contents(self.path, self.header, self.tables), {**told, "program": name})
        return tuple(type(self)(contents) for contents in found)

    @cached_property
    def readable_histories(self) -> tuple[Self, ...]:
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
            found += [
                replace(marker, at_ns=max(0, marker.at_ns + shift), kind=f"{device.device} out of memory")
                for marker in device.refusals
            ]
        return tuple(sorted(found, key=lambda marker: marker.at_ns))

    @cached_property
    def oom_report(self) -> dict[str, Any] | None:
        """What the program wrote when memory of a device was refused and ended it (`hiwater.contrib.torch.guard`); None where it did not."""
        try:
            content = attachments.read(Contents(self.path, self.header, self.tables)).get("oom.json", b"null")
            said = json.loads(content)
        except (CorruptCapture, ValueError, RecursionError):
            return None
        return said if isinstance(said, dict) else None

    def of_kind(self, kind: str) -> tuple[Capture, ...]:
        """The captures to ask for memory of a kind: for "device" those of `device_histories`, where there are any, which have peaks of their
        own; for all else this one."""
        return (self.device_histories if kind == "device" else ()) or (self,)

    @property
    def lost_events(self) -> int:
        """Events that could not be recorded: figures may be off by what they were about."""
        return int(self.header["lost_events"])

    @property
    def shortcomings(self) -> list[str]:
        """What the recorded process did not let the recorder see, in words."""
        return [
            self.facts[name]
            for name in ("calls_not_recorded", "resident_not_sampled", "freed_unseen")
            if name in self.facts
        ]

    @property
    def misses_calls(self) -> bool:
        """Whether some modules' calls of the allocator could not be recorded: what is allocated is at least what is said."""
        return "calls_not_recorded" in self.facts

    @cached_property
    def resident(self) -> Resident:
        return program.resident(self)

    @cached_property
    def totals(self) -> Totals:
        return program.totals(self)

    # Snapshots

    @cached_property
    def peak(self) -> Snapshot:
        """When the sum of the counted kinds was highest: in the whole recording, or in `recorded_window` where it has one."""
        return slices.peak(self)

    @cached_property
    def end(self) -> Snapshot:
        """What was live when the recording ended, or when it was last written to."""
        return slices.end(self)

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """All slices in time, the open one last."""
        return slices.slices(self)

    @cached_property
    def oom(self) -> Snapshot:
        """What was live when memory was last refused, of the refusals at which that was noted. Raises MomentOutOfRange."""
        return slices.oom(self)

    def at(self, seconds: float) -> Snapshot:
        """The peak of the slice that `seconds` after the start lies in. Raises MomentOutOfRange."""
        return self.window(seconds, seconds)

    def window(self, from_seconds: float, to_seconds: float) -> Snapshot:
        """The highest of the slices that touch the time from `from_seconds` to `to_seconds`. Raises MomentOutOfRange."""
        return slices.window(self, from_seconds, to_seconds)

    def snapshot(self, at: str | float) -> Snapshot:
        """The snapshot that `at` names: "peak", "end", "oom", seconds since the start, or a window "T1:T2" in seconds.

        Raises BadRequest for anything else, MomentOutOfRange for a time the recording does not have.
        """
        return slices.named(self, at)

    def of_slice(self, piece: Slice) -> Snapshot:
        """What every account held when this slice was highest."""
        return slices.of_slice(self, piece)

    # Time and happenings

    @cached_property
    def timeline(self) -> Timeline:
        """Samples of resident and live memory over the recording."""
        return timeline.timeline(self)

    @cached_property
    def residency_snapshots(self) -> tuple[ResidencySnapshot, ...]:
        """Where resident memory was, in time: whenever it reached a new height, and at the end."""
        return residency_snapshots.read(self)

    @property
    def highest_residency_snapshot(self) -> ResidencySnapshot | None:
        """The one with the most resident memory."""
        return max(self.residency_snapshots, key=lambda one: one.resident_bytes, default=None)

    @cached_property
    def devices(self) -> tuple[devices.DeviceMemory, ...]:
        """The accelerators that the program used."""
        return devices.devices(self)

    @cached_property
    def pressure(self) -> tuple[limits.Pressure, ...]:
        """How near the process was to its limits, over time."""
        return limits.pressure(self)

    @cached_property
    def refusals(self) -> tuple[Marker, ...]:
        """The requests for memory that were refused: the first 10,000."""
        return tuple(marker for marker in self.markers if marker.kind == "out of memory")

    @cached_property
    def markers(self) -> tuple[Marker, ...]:
        """Forks, refused requests for memory, exec, and full garbage collections.

        A marker of collections says how many there were since the sample before it, at most 10 ms earlier, and has the time of the first sample after them.
        """
        return markers.read(self)

    @cached_property
    def processes(self) -> tuple[WatchedProcess, ...]:
        """The processes that were watched from outside, the target first; none in a capture the engine made."""
        return timeline.processes(self)

    @cached_property
    def scopes(self) -> tuple[ScopeSpan, ...]:
        """Named intervals that the program told of, as they ended."""
        return timeline.scopes(self)

    # Compared with another

    def diff(
        self, after: Capture | str | os.PathLike[str], *, at: str | float = "peak", kind: str = "all", by: str = "stack"
    ) -> Comparison:
        """What grew from this capture to `after`, a capture or the path of one: peak against peak unless `at` says otherwise.

        `kind` is "all", "python", "native", "mapping", "device" or "shared"; `by` is "stack", "function", "line", "file" or "module".
        Raises BadRequest for other words, MomentOutOfRange, and what `open` raises.
        """
        other = after if isinstance(after, Capture) else Capture.open(after)
        here, there = self.of_kind(kind), other.of_kind(kind)
        if len(here) > 1 or len(there) > 1:
            raise BadRequest(
                "there are several devices",
                "compare one of each: before.device_histories[0].diff(after.device_histories[0])",
            )
        compared: Comparison = _registry.load(_registry.COMPARE)(here[0], there[0], at=at, kind=kind, by=by)
        return compared

    # Consistency

    def problems(self) -> list[str]:
        """What contradicts itself in this capture, in words; empty for a sound one."""
        return check.problems(self)

    def check(self) -> None:
        """Raise CorruptCapture with the first of `problems()`, if there is one."""
        found = self.problems()
        if found:
            raise CorruptCapture(
                f"the capture contradicts itself: {found[0]}", "do not trust its figures; record again"
            )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 20 else None
