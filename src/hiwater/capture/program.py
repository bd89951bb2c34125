"""The recorded process: what ran, how it ended, and what it came to over the whole recording."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hiwater._os.sizes import accuracy_of_peak, format_size
from hiwater.capture import bounds
from hiwater.capture.format import DEVICE_HISTORY, KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.process import STATE_RECORDING
from hiwater.capture.tables import Tables, whole_number

ENDED_BY = ("", "signal", "stack overflow", "fatal error", "_exit", "exec")
"""How a process ended, by the number in its capture: an uncaught signal, SIGSEGV at the end of a thread's stack, a
fatal error of the interpreter, `_exit()` without exit callbacks, another program in its place; "" if only its exit
code is known, or nothing."""
_BY_SIGNAL = ENDED_BY[1:4]


@dataclass(frozen=True, slots=True)
class Process:
    """Facts about the recorded process. `ended` is "exit", "killed" or "recording"; times are nanoseconds. `signal`
    ended the process, if it is known; `ended_by` says more: one of `ENDED_BY`.

    `started_by` is "fork" or "exec" for a child of a recorded process, else "". `inherited_bytes` were live in the
    parent at the fork, or inherited by it: the child can read them, and none of them is in its own figures. What the
    parent had freed of what it inherited is still among them.
    """

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
    parent_pid: int | None = None
    started_by: str = ""
    inherited_bytes: int = 0
    signal: int | None = None
    ended_by: str = ""

    def __repr__(self) -> str:
        how = f"{self.ended} {self.exit_code}" if self.exit_code is not None else self.ended
        return f"<Process {self.pid} {reprlib.repr(self.argv)}: {how} after {self.duration_ns / 1e9:.3f} s>"


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident memory of the process.

    `program_peak_bytes` is the highest that it was without hiwater's own memory: what every report shows first. If
    `exact`, it follows from the kernel's high-water mark, and is off by `error_bytes` at most; else it is the
    highest reading, as it is of a killed process, of which nothing could be read at its end. `overhead_bytes` was
    hiwater's own memory at that moment. The figures of the process contain it: `peak_bytes`, the kernel's high-water
    mark, `start_bytes`, of which it was `overhead_start_bytes`, and `end_bytes`, of which it was
    `overhead_end_bytes`. If the recording has no end, the last two are of shortly before."""

    peak_bytes: int
    start_bytes: int
    end_bytes: int
    exact: bool
    error_bytes: int
    overhead_bytes: int
    overhead_end_bytes: int
    overhead_start_bytes: int
    program_peak_bytes: int
    source: str = field(init=False, default="")
    """Where the peak is from."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", "kernel high-water mark (VmHWM)" if self.exact else "highest sample")

    def __repr__(self) -> str:
        accuracy = accuracy_of_peak(exact=self.exact, error_bytes=self.error_bytes)
        peak, overhead = (format_size(count) for count in (self.program_peak_bytes, self.overhead_bytes))
        return f"<Resident: peak {peak} ({accuracy}) and {overhead} overhead of hiwater>"

    @property
    def is_lower_bound(self) -> bool:
        """Whether the peak may have been higher than it was read; False where nothing was read."""
        return not self.exact and self.peak_bytes > 0

    @property
    def program_start_bytes(self) -> int:
        return max(0, self.start_bytes - self.overhead_start_bytes)

    @property
    def program_end_bytes(self) -> int:
        return max(0, self.end_bytes - self.overhead_end_bytes)


@dataclass(frozen=True, slots=True)
class Totals:
    """Over the whole recording, counted kinds. Allocations and their bytes are exact in a sampled recording, too,
    but for what a killed program did in its last milliseconds; `frees` is an estimate there. `temporaries` were
    freed before their thread's next allocation; `frees_from_before` are frees of blocks from before the recording,
    which are in no other figure. A sampled recording counts neither."""

    allocations: int
    frees: int
    allocated_bytes: int
    temporaries: int
    frees_from_before: int = 0


def read_process(tables: Tables) -> Process:
    header, facts = tables.header, tables.facts
    return Process(
        pid=header["pid"],
        argv=arguments(facts.get("argv", "[]")),
        python=facts.get("python", ""),
        hiwater=facts.get("hiwater", ""),
        mode=_mode(tables),
        sample_bytes=header["sample_bytes"],
        ended=ended(tables),
        exit_code=None if header["exit_code"] == -1 else header["exit_code"],
        stop_reason=tables.string(header["stop_reason"]) or None,
        started_unix_ns=header["started_unix_ns"],
        duration_ns=duration_ns(tables),
        parent_pid=tables.number("ppid"),
        started_by=facts.get("started_by", ""),
        inherited_bytes=header["inherited_bytes"],
        signal=header.get("end_signal") or None,
        ended_by=ended_by(tables),
    )


def ended_by(tables: Tables) -> str:
    """How the process ended, one of `ENDED_BY`; "" in captures that no engine wrote."""
    number = tables.header.get("ended_by", 0)
    return ENDED_BY[number] if number < len(ENDED_BY) else ""


def duration_ns(tables: Tables) -> int:
    """How long the recording lasted, or lasts."""
    return int(tables.header["ended_ns"] or tables.header["heartbeat_ns"])


def recorded_window(tables: Tables) -> tuple[int, int] | None:
    """Of a recording that was made inside another one, and is a copy of that: where it began and ended, in
    nanoseconds."""
    first, _, last = tables.facts.get("window_ns", "").partition(":")
    start, end = whole_number(first), whole_number(last)
    return (start, end) if start is not None and end is not None else None


def is_timeline(tables: Tables) -> bool:
    """Whether the process was only watched from outside: there are no stacks, and nothing is known of what it
    allocated."""
    return tables.facts.get("recorder") == "sample"


def device(tables: Tables) -> str | None:
    """The device ("cuda:0") whose memory this capture is about; None for a capture of a process."""
    return tables.facts.get("device") if tables.facts.get("recorder") == DEVICE_HISTORY else None


def _mode(tables: Tables) -> str:
    if is_timeline(tables):
        return "timeline"
    if device(tables) is not None:
        return "history"
    return "sampled" if tables.header["sample_bytes"] else "exact"


def ended(tables: Tables) -> str:
    """How the recording ended: "exit", "killed" or "recording"."""
    if recorded_window(tables) is not None:
        return "exit"  # the recording around went on
    if tables.header.get("snapshot_ns"):
        return "recording"  # a copy from the middle of a recording, whatever became of that
    if ended_by(tables) in _BY_SIGNAL:
        return "killed"
    if tables.header["state"] != STATE_RECORDING or tables.header["ended_ns"] != 0:
        return "exit"
    return "recording" if tables.is_alive else "killed"


def died_unread(tables: Tables) -> bool:
    """Whether the process was killed, and nobody read its memory at its end."""
    return ended(tables) == "killed" and not tables.header["ended_ns"]


def shortcomings(tables: Tables) -> list[str]:
    """What the recorded process did not let the recorder see, in words."""
    names = ("calls_not_recorded", "resident_not_sampled", "freed_unseen", "last_words_not_written")
    return [tables.facts[name] for name in names if name in tables.facts]


def program_peak_bytes(header: Mapping[str, Any]) -> int:
    """The resident peak without hiwater's own memory. A capture that no engine wrote has that at its largest, of
    whatever moment."""
    return int(header.get("program_peak_bytes", max(0, header["resident_peak_bytes"] - header["overhead_bytes"])))


def read_resident(tables: Tables) -> Resident:
    header, first = tables.header, tables["timeline"][:1]
    return Resident(
        overhead_start_bytes=sum(first["overhead_bytes"].tolist())
        if "overhead_bytes" in (first.dtype.names or ())
        else 0,
        program_peak_bytes=program_peak_bytes(header),
        peak_bytes=header["resident_peak_bytes"],
        start_bytes=header["resident_start_bytes"],
        end_bytes=header["resident_last_bytes"],
        exact=header["resident_exact"] == 1 and not died_unread(tables),
        error_bytes=header["resident_error_bytes"] + header.get("program_peak_error_bytes", 0),
        overhead_bytes=header["overhead_bytes"],
        overhead_end_bytes=header.get("overhead_last_bytes", header["overhead_bytes"]),
    )


def read_totals(tables: Tables) -> Totals:
    accounts = tables["accounts"]
    counted = is_counted(tables.account_kind)
    allocations = int(accounts["total_blocks"][counted].sum())
    allocated_bytes = int(accounts["total_bytes"][counted].sum())
    frees = max(0, allocations - int(accounts["live_blocks"][counted].sum()))
    if tables.header["sample_bytes"]:
        # Objects and malloc's blocks were counted all the same; mappings are never sampled.
        other = counted & (tables.account_kind > KINDS.index("native"))
        allocations = tables.header["exact_total_blocks"] + int(accounts["total_blocks"][other].sum())
        allocated_bytes = tables.header["exact_total_bytes"] + int(accounts["total_bytes"][other].sum())
    return Totals(
        allocations=allocations,
        frees=frees,
        allocated_bytes=allocated_bytes,
        temporaries=int(tables["account_peaks"]["temporaries"][: len(counted)][counted].sum()),
        frees_from_before=tables.header.get("unknown_frees", 0),
    )


def arguments(text: str) -> tuple[str, ...]:
    """The arguments, from a JSON list; text that is none is one argument. Of very many, the first ones."""
    if len(text) > bounds.LONGEST_ARGUMENTS:
        end = text.rfind('", "', 0, bounds.LONGEST_ARGUMENTS)
        text = f'{text[:end]}", "…"]' if end > 0 else f"{text[: bounds.LONGEST_NAME_BYTES]}…"
    try:
        argv = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    return tuple(str(argument) for argument in argv) if isinstance(argv, list) else (text,)


def name_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """What names the program: the first argument, or the module after -m."""
    return argv[1:2] if argv[:1] == ("-m",) else argv[:1]
