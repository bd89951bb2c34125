"""A capture as its readers think of it: the process, its peaks, its end, its timeline, and any moment between."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hiwater.capture import attached, cells, check, container, devices, limits, marks, process, residency
from hiwater.capture.container import read_contents
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.marks import Mark
from hiwater.capture.moment import Frame, Ints, Moment
from hiwater.capture.paths import Paths
from hiwater.capture.process import STATE_RECORDING
from hiwater.capture.reader import Contents
from hiwater.errors import BadRequest, CorruptCapture, HiwaterError, MomentOutOfRange
from hiwater.history import RECORDER, files
from hiwater.history.state import AllocatorState

if TYPE_CHECKING:
    from hiwater.analysis.diff import Comparison

_LIVE_TRIES = 5
UNKNOWN_EXIT_STATUS = -(1 << 31)  # a process of -1 was ended by SIGHUP
_SCOPE_SIZES = ("start_bytes", "end_bytes", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Process:
    """Facts about the recorded process. `ended` is "exit", "killed" or "recording"; times are nanoseconds."""

    pid: int
    argv: tuple[str, ...]
    python: str
    hiwater: str
    mode: str
    sample_bytes: int
    ended: str
    exit_code: int | None
    stop_reason: str | None
    started_unix_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident memory of the process. The peak is the kernel's own mark when `exact`, off by `error_bytes` at most; else the
    highest of samples. `own_bytes` are the recorder's tables, part of the other figures."""

    peak_bytes: int
    start_bytes: int
    end_bytes: int
    exact: bool
    error_bytes: int
    own_bytes: int

    @property
    def source(self) -> str:
        return "kernel mark (VmHWM)" if self.exact else "highest sample"


@dataclass(frozen=True, slots=True)
class Totals:
    """Over the whole recording, counted kinds. Allocations and their bytes are exact in a sampled recording, too, but for what a killed
    program did in its last milliseconds; `frees` is an estimate there. `temporaries` were freed before their
    thread's next allocation; a sampled recording does not count them."""

    allocations: int
    frees: int
    allocated_bytes: int
    temporaries: int


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Samples in time: parallel arrays. `kind_bytes[kind]` is what was live of each kind."""

    at_ns: Ints
    resident_bytes: Ints
    allocated_bytes: Ints
    kind_bytes: dict[str, Ints]

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time with a peak of its own; nanoseconds since the recording began. `index` is None for the open one."""

    index: int | None
    start_ns: int
    end_ns: int
    mark_ns: int
    mark_bytes: int
    mark_blocks: int
    unlisted_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class WatchedProcess:
    """A process that `hiwater sample` watched. Times are nanoseconds since the recording began; `end_ns` is None while it runs.

    `exact` says that `peak_bytes` is the kernel's own mark up to the process's end; else memory reached at least that.
    `exit_status` is its exit code, negative for the signal that ended it, None where nobody could tell.
    """

    pid: int
    parent_pid: int
    name: str
    command: tuple[str, ...]
    start_ns: int
    end_ns: int | None
    peak_bytes: int
    exact: bool
    exit_status: int | None
    at_ns: Ints
    resident_bytes: Ints


@dataclass(frozen=True, slots=True)
class ScopeSpan:
    """A named interval that the program told of: nanoseconds since the recording began, bytes resident (None: not known)."""

    name: str
    pid: int
    thread_id: int
    depth: int
    start_ns: int
    end_ns: int
    start_bytes: int | None
    end_bytes: int | None
    peak_bytes: int | None


class Capture:
    """One recorded process. Made by `hiwater.open`; reading is over when it returns, the file is not looked at again."""

    def __init__(self, contents: Contents, *, is_alive: bool = False) -> None:
        self.path: Path = contents.path
        self.header = contents.header
        self.tables = contents.tables
        self._is_alive = is_alive
        self.cells = cells.read(self._texts())
        if self.cells:
            self.tables = cells.without_kernel(self)
            self.__dict__.pop("paths", None)  # those made on the way had the kernel's frames
        ledgers = self.tables["ledgers"]
        self.ledger_node: Ints = ledgers["node"].astype(np.int64)
        self.ledger_kind: Ints = ledgers["kind"].astype(np.int64)
        self.ledger_is_drawn: npt.NDArray[np.bool_] = ledgers["sampled"] != 0

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read a capture; one that is still being written is read again when it changed under us. `all.hiw/NAME` is one of a
        merged one.

        Raises BadRequest for a merged capture of more than one, MissingCapture, ForeignFile, NewerCapture, CutCapture or CorruptCapture.
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
        if files.is_history(path):
            return tuple(cls._of(contents) for contents in files.read_all(path))
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
        header, facts = self.header, self.facts
        return Process(
            pid=header["pid"],
            argv=_argv(facts.get("argv", "[]")),
            python=facts.get("python", ""),
            hiwater=facts.get("hiwater", ""),
            mode=self._mode(),
            sample_bytes=header["sample_bytes"],
            ended=self._ended(),
            exit_code=None if header["exit_code"] == -1 else header["exit_code"],
            stop_reason=self.string(header["stop_reason"]) or None,
            started_unix_ns=header["started_unix_ns"],
            duration_ns=header["ended_ns"] or header["heartbeat_ns"],
        )

    def _mode(self) -> str:
        if self.is_timeline:
            return "timeline"
        if self.device is not None:
            return "history"
        return "sampled" if self.header["sample_bytes"] else "exact"

    def _ended(self) -> str:
        if self.recorded_window is not None:
            return "exit"  # the recording around went on
        if self.header["state"] != STATE_RECORDING or self.header["ended_ns"] != 0:
            return "exit"
        return "recording" if self._is_alive else "killed"

    @property
    def is_timeline(self) -> bool:
        """Whether the process was only watched from outside: there are no stacks, and nothing is known of what it allocated."""
        return self.facts.get("recorder") == "sample"

    @property
    def device(self) -> str | None:
        """The device ("cuda:0") whose memory this capture is about; None for a capture of a process."""
        return self.facts.get("device") if self.facts.get("recorder") == RECORDER else None

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
        program = self.facts.get("program") or " ".join(_name_of(self.process.argv)).rsplit("/", 1)[-1]
        found = files.attached_to(Contents(self.path, self.header, self.tables), {**told, "program": program})
        return tuple(type(self)(contents) for contents in found)

    @cached_property
    def readable_histories(self) -> tuple[Self, ...]:
        """The same, or none where they cannot be read, which `problems()` then says: what is known of RAM is worth showing all the same."""
        try:
            return self.device_histories
        except HiwaterError:
            return ()

    @cached_property
    def device_refusals(self) -> tuple[Mark, ...]:
        """Where memory of a device was refused, in this recording's own time; `kind` names the device."""
        found = []
        for device in self.readable_histories:
            shift = device.process.started_unix_ns - self.process.started_unix_ns
            found += [
                replace(mark, at_ns=max(0, mark.at_ns + shift), kind=f"{device.device} out of memory")
                for mark in device.refusals
            ]
        return tuple(sorted(found, key=lambda mark: mark.at_ns))

    @cached_property
    def oom_report(self) -> dict[str, Any] | None:
        """What the program wrote when memory of a device was refused and ended it (`hiwater.torch.guard`); None where it did not."""
        try:
            content = attached.read(Contents(self.path, self.header, self.tables)).get("oom.json", b"null")
            said = json.loads(content)
        except (CorruptCapture, ValueError, RecursionError):
            return None
        return said if isinstance(said, dict) else None

    def of_kind(self, kind: str) -> tuple[Capture, ...]:
        """The captures to ask for memory of a kind: for "device" those of `device_histories`, where there are any, which have moments of their
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
        header = self.header
        return Resident(
            peak_bytes=header["resident_peak_bytes"],
            start_bytes=header["resident_start_bytes"],
            end_bytes=header["resident_last_bytes"],
            exact=header["resident_exact"] == 1,
            error_bytes=header["resident_error_bytes"],
            own_bytes=header["own_bytes"],
        )

    @cached_property
    def totals(self) -> Totals:
        ledgers = self.tables["ledgers"]
        counted = is_counted(self.ledger_kind)
        allocations = int(ledgers["total_blocks"][counted].sum())
        allocated_bytes = int(ledgers["total_bytes"][counted].sum())
        frees = max(0, allocations - int(ledgers["live_blocks"][counted].sum()))
        if self.header["sample_bytes"]:
            # Objects and malloc's blocks were counted all the same; mappings are never drawn.
            other = counted & (self.ledger_kind > KINDS.index("native"))
            allocations = self.header["exact_total_blocks"] + int(ledgers["total_blocks"][other].sum())
            allocated_bytes = self.header["exact_total_bytes"] + int(ledgers["total_bytes"][other].sum())
        return Totals(
            allocations=allocations,
            frees=frees,
            allocated_bytes=allocated_bytes,
            temporaries=int(self.tables["ledger_cold"]["temporaries"][: len(counted)][counted].sum()),
        )

    # Moments

    @cached_property
    def peak(self) -> Moment:
        """The moment the counted kinds together were highest in the whole recording; in `recorded_window`, where it has one."""
        if self.recorded_window is not None:
            start, end = self.recorded_window
            pieces = [piece for piece in self.slices if piece.start_ns >= start and piece.end_ns <= end]
            if pieces:
                return replace(self.of_slice(max(pieces, key=lambda piece: piece.mark_bytes)), name="peak")
        best = self._best()
        if self.header["mark_bytes"] > best["best_bytes"]:
            return self._open_mark("peak")
        cold = self.tables["ledger_cold"][: len(self.ledger_node)]
        return self._moment(
            "peak",
            best["best_ns"],
            0,
            self.process.duration_ns,
            cold["peak_bytes"],
            cold["peak_blocks"],
            (best["best_bytes"], best["best_blocks"]),
        )

    @cached_property
    def end(self) -> Moment:
        """What was live when the recording ended, or when it was last written to."""
        ledgers, at_ns = self.tables["ledgers"], self.process.duration_ns
        recorded = (self.header["live_bytes"], self.header["live_blocks"])
        return self._moment("end", at_ns, at_ns, at_ns, ledgers["live_bytes"], ledgers["live_blocks"], recorded)

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """All slices in time, the open one last."""
        names = ("start_ns", "end_ns", "mark_ns", "mark_bytes", "mark_blocks", "unlisted_bytes")
        columns = (self.tables["slices"][name].tolist() for name in names)
        closed = [Slice(index, *values) for index, values in enumerate(zip(*columns, strict=True))]
        header, start_ns = self.header, self._best()["slice_start_ns"]
        end_ns = max(start_ns, self.process.duration_ns)
        return (
            *closed,
            Slice(None, start_ns, end_ns, header["mark_ns"], header["mark_bytes"], header["mark_blocks"], 0),
        )

    @cached_property
    def oom(self) -> Moment:
        """What was live when memory was last refused, of the refusals at which that was noted. Raises MomentOutOfRange."""
        refused_at = {mark.at_ns for mark in self.refusals}
        for piece in reversed(self.slices):
            if piece.index is not None and piece.start_ns == piece.end_ns and piece.mark_ns in refused_at:
                return replace(self.of_slice(piece), name="oom")
        if self.device_refusals:
            raise MomentOutOfRange(
                "RAM was never refused to this program, but memory of a device was", "add --kind device"
            )
        raise MomentOutOfRange("memory was never refused to this program", "look at the peak or the end instead")

    def at(self, seconds: float) -> Moment:
        """The peak of the slice that `seconds` after the start lies in. Raises MomentOutOfRange."""
        return self.window(seconds, seconds)

    def window(self, from_seconds: float, to_seconds: float) -> Moment:
        """The highest of the slices that touch the time from `from_seconds` to `to_seconds`. Raises MomentOutOfRange."""
        lasted = self.process.duration_ns / 1e9
        if not 0 <= from_seconds <= to_seconds or from_seconds > lasted:
            raise MomentOutOfRange(
                f"the recording has no time from {from_seconds:g} s to {to_seconds:g} s",
                f"give seconds between 0 and {lasted:.3f}, the first not above the second",
            )
        begin, end = from_seconds * 1e9, to_seconds * 1e9
        touching = [piece for piece in self.slices if piece.start_ns <= end and piece.end_ns > begin]
        if not touching:
            touching = [self.slices[-1]]
        return self.of_slice(max(touching, key=lambda piece: piece.mark_bytes))

    def moment(self, at: str | float) -> Moment:
        """The moment that `at` names: "peak", "end", "oom", seconds since the start, or a window "T1:T2" in seconds.

        Raises BadRequest for anything else, MomentOutOfRange for a time the recording does not have.
        """
        if at == "peak":
            return self.peak
        if at == "end":
            return self.end
        if at == "oom":
            return self.oom
        first, _, last = str(at).partition(":")
        try:
            return self.window(float(first), float(last or first))
        except ValueError:
            raise BadRequest(f"{at!r} is none of peak, end, oom, SECONDS, T1:T2", "name a moment so") from None

    def of_slice(self, piece: Slice) -> Moment:
        """What every ledger held when this slice was highest."""
        if piece.index is None:
            return self._open_mark("slice")
        entries = self.tables["slice_entries"]
        values, blocks = np.zeros(len(self.ledger_node), np.int64), np.zeros(len(self.ledger_node), np.int64)
        for first, count in self.tables["slices"][["first_entry", "entry_count"]][: piece.index + 1].tolist():
            listed = entries[first : first + count]
            values[listed["ledger"]] = listed["bytes"]
            blocks[listed["ledger"]] = listed["blocks"]
        return Moment(
            self,
            "slice",
            piece.mark_ns,
            piece.start_ns,
            piece.end_ns,
            values,
            blocks,
            piece.mark_bytes,
            piece.mark_blocks,
            piece.unlisted_bytes,
        )

    def _best(self) -> dict[str, int]:
        """The epoch in force: the highest closed slice and the start of the open one."""
        prefix = f"epoch{self.header['epoch_index']}_"
        return {name: self.header[prefix + name] for name in ("best_bytes", "best_blocks", "best_ns", "slice_start_ns")}

    def _open_mark(self, name: str) -> Moment:
        """The open slice's mark, which ledgers save lazily: at their first change after it (the rule is in format.h)."""
        ledgers, header = self.tables["ledgers"], self.header
        is_saved = ledgers["generation"] == header["generation"]
        values = np.where(is_saved, ledgers["saved_bytes"], ledgers["live_bytes"])
        blocks = np.where(is_saved, ledgers["saved_blocks"], ledgers["live_blocks"])
        start_ns = self._best()["slice_start_ns"] if name == "slice" else 0
        end_ns = max(start_ns, self.process.duration_ns)
        return self._moment(
            name, header["mark_ns"], start_ns, end_ns, values, blocks, (header["mark_bytes"], header["mark_blocks"])
        )

    def _moment(
        self, name: str, at_ns: int, start_ns: int, end_ns: int, values: Any, blocks: Any, recorded: tuple[int, int]
    ) -> Moment:
        values, blocks = values.astype(np.int64), blocks.astype(np.int64)
        if self._is_alive:  # an event may be half seen, and its free without its allocation
            values, blocks = np.maximum(values, 0), np.maximum(blocks, 0)
        return Moment(self, name, at_ns, start_ns, end_ns, values, blocks, *recorded)

    # Time and happenings

    @cached_property
    def timeline(self) -> Timeline:
        """Samples of resident and live memory over the recording."""
        rows = self.tables["timeline"]
        kinds = {kind: rows["live_bytes"][:, index].astype(np.int64) for index, kind in enumerate(KINDS)}
        allocated = np.zeros(len(rows), np.int64)
        for kind in COUNTED_KINDS:
            allocated += kinds[kind]
        return Timeline(rows["at_ns"].astype(np.int64), rows["resident_bytes"].astype(np.int64), allocated, kinds)

    @cached_property
    def looks(self) -> tuple[residency.Look, ...]:
        """Where resident memory was, as often as that was looked at: when it reached new heights, and at the end."""
        return residency.looks(self)

    @property
    def highest_look(self) -> residency.Look | None:
        """The look at which most was resident."""
        return max(self.looks, key=lambda look: look.resident_bytes, default=None)

    @cached_property
    def devices(self) -> tuple[devices.DeviceMemory, ...]:
        """The accelerators that the program used."""
        return devices.devices(self)

    @cached_property
    def pressure(self) -> tuple[limits.Pressure, ...]:
        """How near the process was to its limits, over time."""
        return limits.pressure(self)

    @cached_property
    def refusals(self) -> tuple[Mark, ...]:
        """The requests for memory that were refused: the first 10,000."""
        return tuple(mark for mark in self.marks if mark.kind == "out of memory")

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Forks, refused requests for memory, exec, and full garbage collections: each of these marks says how many there were since
        the look before it, 10 ms at most, and stands at the first look after them."""
        return marks.marks(self)

    @cached_property
    def processes(self) -> tuple[WatchedProcess, ...]:
        """The processes that were watched from outside, the target first; none in a capture the engine made."""
        rows, samples = self.tables.get("processes"), self.tables.get("process_samples")
        if rows is None or samples is None:
            return ()
        order = np.argsort(samples["process"], kind="stable")
        bounds = np.searchsorted(samples["process"][order], np.arange(len(rows) + 1))
        return tuple(self._process(number, row, samples[order[bounds[number] : bounds[number + 1]]])
                     for number, row in enumerate(rows))  # fmt: skip

    def _process(self, number: int, row: Any, samples: Any) -> WatchedProcess:
        if number == 0:
            samples = self.tables["timeline"]
        status = int(row["exit_status"])
        return WatchedProcess(
            pid=int(row["pid"]),
            parent_pid=int(row["parent_pid"]),
            name=self.string(int(row["name"])),
            command=_argv(self.string(int(row["command"])) or "[]"),
            start_ns=int(row["start_ns"]),
            end_ns=int(row["end_ns"]) or None,
            peak_bytes=int(row["peak_bytes"]),
            exact=bool(row["exact"]),
            exit_status=None if status == UNKNOWN_EXIT_STATUS else status,
            at_ns=samples["at_ns"].astype(np.int64),
            resident_bytes=samples["resident_bytes"].astype(np.int64),
        )

    @cached_property
    def scopes(self) -> tuple[ScopeSpan, ...]:
        """Named intervals that the program told of, as they ended."""
        rows = self.tables.get("scopes", ())
        return tuple(
            ScopeSpan(
                self.string(int(row["name"])), int(row["pid"]), int(row["thread_id"]), int(row["depth"]),
                int(row["start_ns"]), int(row["end_ns"]), *(_known(int(row[name])) for name in _SCOPE_SIZES),
            )
            for row in rows
        )  # fmt: skip

    # Beside another

    def diff(
        self, after: Capture | str | os.PathLike[str], *, at: str | float = "peak", kind: str = "all", by: str = "stack"
    ) -> Comparison:
        """What grew from this capture to `after`, a capture or the path of one: peak against peak unless `at` says otherwise.

        `kind` is "all", "python", "native", "mapping", "device" or "shared"; `by` is "stack", "function", "line", "file" or "module".
        Raises BadRequest for other words, MomentOutOfRange, and what `open` raises.
        """
        from hiwater.analysis.diff import (
            compare,
        )  # a convenience at this end of the flow: nothing else here looks ahead
        from hiwater.views.source import as_recorded

        other = after if isinstance(after, Capture) else Capture.open(after)
        here, there = self.of_kind(kind), other.of_kind(kind)
        if len(here) > 1 or len(there) > 1:
            raise BadRequest(
                "there are several devices",
                "compare one of each: before.device_histories[0].diff(after.device_histories[0])",
            )
        if (here, there) != ((self,), (other,)):
            return here[0].diff(there[0], at=at, kind=kind, by=by)
        return compare(self, other, at=at, kind=kind, by=by, sources=(as_recorded(self), as_recorded(other)))

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


def _known(count: int) -> int | None:
    return None if count < 0 else count


def _name_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """What names the program: the first argument, or the module after -m."""
    return argv[1:2] if argv[:1] == ("-m",) else argv[:1]


def _argv(text: str) -> tuple[str, ...]:
    """The arguments, from a JSON list; text that is none is one argument."""
    try:
        argv = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    return tuple(str(argument) for argument in argv) if isinstance(argv, list) else (text,)
