"""The index of a run of several processes: which children ended, and which interpreters were started.

The folder beside the main capture (`run.hiw.d`) has it as `index.jsonl`: JSON objects, each padded with spaces to
ROW_BYTES. A merged capture has the same rows, each with the `run` that it belongs to. A row can be damaged: such a row
is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hiwater._os import trust
from hiwater._os.destination import CHILDREN_INDEX
from hiwater.capture import bounds
from hiwater.capture.document_types import Signed
from hiwater.capture.program import arguments

ROW_BYTES = 512
_CLOCKS_DIFFER_NS = 1_000_000_000
_SIZES = (
    "duration_ns", "peak_bytes", "peak_blocks", "live_bytes", "total_bytes", "total_blocks", "resident_peak_bytes",
    "inherited_bytes",
)  # fmt: skip
_NUMBERS = {
    "ended": ("pid", "start_ticks", "ppid", "exit_code", "started_unix_ns", *_SIZES),
    "started": ("pid", "ppid", "at_unix_ns"),
    "killed": ("pid", "at_unix_ns", "signal"),
    "unreadable": (),
}
_TEXTS = {"ended": ("started_by", "capture"), "started": ("program", "why"), "killed": (), "unreadable": ("problem",)}

Row = dict[str, Any]


class Described(Protocol):
    """What is asked of a capture here."""

    @property
    def header(self) -> Mapping[str, Any]: ...
    @property
    def facts(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class ShortProcess:
    """A child that left these figures and no capture. `started_by` is "fork" or "exec"; `run` names the run that it
    belongs to. `exit_code` is −1 if it is not known."""

    run: str
    pid: int
    parent_pid: int
    started_by: str
    exit_code: Signed
    started_unix_ns: int
    duration_ns: int
    peak_bytes: int
    peak_blocks: int
    live_bytes: int
    total_bytes: int
    total_blocks: int
    resident_peak_bytes: int
    inherited_bytes: int
    start_ticks: int
    """When the process started, in the kernel's clock ticks since the machine did."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A Python process that a recorded process started and that left nothing. `why` says why it was not recorded.
    `pid` is 0 if it is not known."""

    run: str
    pid: int
    parent_pid: int
    at_unix_ns: int
    program: str
    why: str


def read_folder(folder: Path, run: str, begin: int = 0) -> tuple[list[Row], int]:
    """The rows of the index in this folder from byte `begin` on, each with its `run`, and where the next one will
    begin; none if there is no index. A last row that is not complete is left out."""
    try:
        with open(trust.open_regular(folder / CHILDREN_INDEX), "rb") as file:
            file.seek(begin)
            content = file.read(max(0, bounds.LARGEST_ROWS_BYTES - begin))
    except OSError:
        return [], begin
    whole = range(0, len(content) - ROW_BYTES + 1, ROW_BYTES)
    return parse((content[at : at + ROW_BYTES] for at in whole), run), begin + len(whole) * ROW_BYTES


def parse(lines: Iterable[bytes], run: str = "") -> list[Row]:
    """The rows in these lines. `run` is that of rows which do not name one."""
    found = []
    for line in lines:
        try:
            row = json.loads(line) if len(line) <= bounds.LONGEST_ROW_BYTES else None
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _is_whole(row):
            found.append({**row, "run": str(row.get("run", run))})
    return found


def _is_whole(row: Row) -> bool:
    event = row.get("event")
    return (
        isinstance(event, str)
        and event in _NUMBERS
        and all(
            type(row.get(name)) is int and (-256 if name == "exit_code" else 0) <= row[name] < 1 << 62
            for name in _NUMBERS[event]
        )
        and all(isinstance(row.get(name), str) for name in _TEXTS[event])
    )


def unreadable_row(problem: str) -> Row:
    """The row of a merged capture for one that could not be read and is not in it: its path and why."""
    return {"event": "unreadable", "problem": problem, "run": ""}


def unreadable(rows: Iterable[Row]) -> list[str]:
    """For each capture that could not be read when it was merged: its path and why."""
    return [row["problem"] for row in rows if row["event"] == "unreadable"]


def text(rows: Iterable[Row]) -> bytes:
    """The rows as lines: each row once, in an order that depends on the rows alone."""
    return "".join(f"{line}\n" for line in sorted({json.dumps(row, sort_keys=True) for row in rows})).encode()


def short_processes(captures: Sequence[Described], rows: Sequence[Row]) -> tuple[ShortProcess, ...]:
    """The children that ended and of which there is no capture, in the order of their starts."""
    captured = {(_run_of(one), one.header["pid"], one.header["process_start_ticks"]) for one in captures}
    found = [
        ShortProcess(
            row["run"], row["pid"], row["ppid"], row["started_by"], row["exit_code"], row["started_unix_ns"],
            *(row[name] for name in (*_SIZES, "start_ticks")),
        )
        for row in _ended(rows)
        if not row["capture"] or (row["run"], row["pid"], row["start_ticks"]) not in captured
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (one.started_unix_ns, one.pid)))


def process_count(captures: Sequence[Described], short: Sequence[ShortProcess] = ()) -> int:
    """How many processes these are: one that executes another program is the same, and has a capture for each."""
    headers = [one.header for one in captures]
    captured = {(one["boot_id"], one["pid"], one["process_start_ticks"]) for one in headers}
    of_runs = {(_run_of(one), one.header["pid"], one.header["process_start_ticks"]) for one in captures if short}
    return len(captured) + len({(one.run, one.pid, one.start_ticks) for one in short} - of_runs)


def unrecorded(captures: Sequence[Described], rows: Sequence[Row]) -> tuple[Unrecorded, ...]:
    """The interpreters that were started and left neither a capture nor a row, in the order of their starts; and the
    children of which their parents know no more than that they could not be recorded."""
    seen: dict[tuple[str, int], list[int]] = {}
    for one in captures:
        seen.setdefault((_run_of(one), one.header["pid"]), []).append(one.header["started_unix_ns"])
    for row in _ended(rows):
        seen.setdefault((row["run"], row["pid"]), []).append(row["started_unix_ns"])
    found, next_start = [one for capture in captures for one in _refused(capture)], dict[tuple[str, int], int]()
    for row in sorted((row for row in rows if row["event"] == "started"), key=lambda row: -row["at_unix_ns"]):
        key, at = (row["run"], row["pid"]), row["at_unix_ns"]
        until = next_start.get(key, 1 << 63)
        if not any(at - _CLOCKS_DIFFER_NS <= began < until for began in seen.get(key, ())):
            found.append(Unrecorded(row["run"], row["pid"], row["ppid"], at, row["program"], _reason(row["why"])))
        next_start[key] = at
    return tuple(sorted(found, key=lambda one: (one.at_unix_ns, one.pid)))


def _refused(capture: Described) -> list[Unrecorded]:
    """The children of this process whose recording could not begin."""
    header = capture.header
    program = capture.facts.get("program") or " ".join(arguments(capture.facts.get("argv", "[]")))
    why = f"its recording could not begin ({os.strerror(header.get('refused_error', 0))})"
    one = Unrecorded(_run_of(capture), 0, header["pid"], header["started_unix_ns"], f"{program} (a fork)", why)
    return [one] * min(header.get("refused_children", 0), bounds.MOST_REFUSED_CHILDREN)


def deaths(captures: Sequence[Described], rows: Sequence[Row]) -> dict[int, tuple[int, int]]:
    """For each capture of a process that a signal ended: its index, and when its parent learned it, in nanoseconds
    of the wall clock, and the signal."""
    killed: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in rows:
        if row["event"] == "killed":
            killed.setdefault((row["run"], row["pid"]), []).append((row["at_unix_ns"], row["signal"]))
    found = {}
    for place, one in enumerate(captures):
        began = one.header["started_unix_ns"] - _CLOCKS_DIFFER_NS
        known = sorted(
            at_and_signal
            for at_and_signal in killed.get((_run_of(one), one.header["pid"]), ())
            if at_and_signal[0] >= began
        )
        if known:
            found[place] = known[0]
    return found


def _reason(why: str) -> str:
    if why == "-S":
        return "it was started with -S, which skips hiwater's start-up file"
    if why in {"-I", "-E"}:
        return f"it was started with {why}, and ignores its environment, in which hiwater would ask it to record itself"
    return why or "hiwater is not installed in its environment, or its recording could not begin"


def _ended(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["event"] == "ended"]


def _run_of(capture: Described) -> str:
    return capture.facts.get("run_id", "")
