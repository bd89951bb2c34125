"""The recorded process: what ran, how it ended, and what it came to over the whole recording."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.process import STATE_RECORDING

if TYPE_CHECKING:
    from hiwater.capture.model import Capture


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
    highest of samples. `overhead_bytes` are the recorder's tables, part of the other figures."""

    peak_bytes: int
    start_bytes: int
    end_bytes: int
    exact: bool
    error_bytes: int
    overhead_bytes: int

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


def process(capture: Capture, *, is_alive: bool) -> Process:
    """`is_alive`: the process still writes the capture."""
    header, facts = capture.header, capture.facts
    return Process(
        pid=header["pid"],
        argv=arguments(facts.get("argv", "[]")),
        python=facts.get("python", ""),
        hiwater=facts.get("hiwater", ""),
        mode=_mode(capture),
        sample_bytes=header["sample_bytes"],
        ended=_ended(capture, is_alive=is_alive),
        exit_code=None if header["exit_code"] == -1 else header["exit_code"],
        stop_reason=capture.string(header["stop_reason"]) or None,
        started_unix_ns=header["started_unix_ns"],
        duration_ns=header["ended_ns"] or header["heartbeat_ns"],
    )


def _mode(capture: Capture) -> str:
    if capture.is_timeline:
        return "timeline"
    if capture.device is not None:
        return "history"
    return "sampled" if capture.header["sample_bytes"] else "exact"


def _ended(capture: Capture, *, is_alive: bool) -> str:
    if capture.recorded_window is not None:
        return "exit"  # the recording around went on
    if capture.header["state"] != STATE_RECORDING or capture.header["ended_ns"] != 0:
        return "exit"
    return "recording" if is_alive else "killed"


def resident(capture: Capture) -> Resident:
    header = capture.header
    return Resident(
        peak_bytes=header["resident_peak_bytes"],
        start_bytes=header["resident_start_bytes"],
        end_bytes=header["resident_last_bytes"],
        exact=header["resident_exact"] == 1,
        error_bytes=header["resident_error_bytes"],
        overhead_bytes=header["overhead_bytes"],
    )


def totals(capture: Capture) -> Totals:
    accounts = capture.tables["accounts"]
    counted = is_counted(capture.account_kind)
    allocations = int(accounts["total_blocks"][counted].sum())
    allocated_bytes = int(accounts["total_bytes"][counted].sum())
    frees = max(0, allocations - int(accounts["live_blocks"][counted].sum()))
    if capture.header["sample_bytes"]:
        # Objects and malloc's blocks were counted all the same; mappings are never sampled.
        other = counted & (capture.account_kind > KINDS.index("native"))
        allocations = capture.header["exact_total_blocks"] + int(accounts["total_blocks"][other].sum())
        allocated_bytes = capture.header["exact_total_bytes"] + int(accounts["total_bytes"][other].sum())
    return Totals(
        allocations=allocations,
        frees=frees,
        allocated_bytes=allocated_bytes,
        temporaries=int(capture.tables["account_peaks"]["temporaries"][: len(counted)][counted].sum()),
    )


def arguments(text: str) -> tuple[str, ...]:
    """The arguments, from a JSON list; text that is none is one argument."""
    try:
        argv = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    return tuple(str(argument) for argument in argv) if isinstance(argv, list) else (text,)


def name_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """What names the program: the first argument, or the module after -m."""
    return argv[1:2] if argv[:1] == ("-m",) else argv[:1]
