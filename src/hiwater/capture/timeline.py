"""What was measured and told along the time of a recording: samples of memory, processes watched from outside, scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hiwater.capture import program
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables
from hiwater.capture.writer import UNKNOWN_EXIT_STATUS

_SCOPE_SIZES = ("start_bytes", "end_bytes", "peak_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Samples in time: parallel arrays. `kind_bytes[kind]` is what was live of each kind."""

    at_ns: Ints
    resident_bytes: Ints
    allocated_bytes: Ints
    kind_bytes: dict[str, Ints]

    def __len__(self) -> int:
        return len(self.at_ns)


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


def read_timeline(tables: Tables) -> Timeline:
    rows = tables["timeline"]
    kinds = {kind: rows["live_bytes"][:, index].astype(np.int64) for index, kind in enumerate(KINDS)}
    allocated = np.zeros(len(rows), np.int64)
    for kind in COUNTED_KINDS:
        allocated += kinds[kind]
    return Timeline(rows["at_ns"].astype(np.int64), rows["resident_bytes"].astype(np.int64), allocated, kinds)


def read_processes(tables: Tables) -> tuple[WatchedProcess, ...]:
    rows, samples = tables.get("processes"), tables.get("process_samples")
    if rows is None or samples is None:
        return ()
    order = np.argsort(samples["process"], kind="stable")
    bounds = np.searchsorted(samples["process"][order], np.arange(len(rows) + 1))
    return tuple(_process(tables, number, row, samples[order[bounds[number] : bounds[number + 1]]])
                 for number, row in enumerate(rows))  # fmt: skip


def _process(tables: Tables, number: int, row: Any, samples: Any) -> WatchedProcess:
    if number == 0:
        samples = tables["timeline"]
    status = int(row["exit_status"])
    return WatchedProcess(
        pid=int(row["pid"]),
        parent_pid=int(row["parent_pid"]),
        name=tables.string(int(row["name"])),
        command=program.arguments(tables.string(int(row["command"])) or "[]"),
        start_ns=int(row["start_ns"]),
        end_ns=int(row["end_ns"]) or None,
        peak_bytes=int(row["peak_bytes"]),
        exact=bool(row["exact"]),
        exit_status=None if status == UNKNOWN_EXIT_STATUS else status,
        at_ns=samples["at_ns"].astype(np.int64),
        resident_bytes=samples["resident_bytes"].astype(np.int64),
    )


def read_scopes(tables: Tables) -> tuple[ScopeSpan, ...]:
    rows = tables.get("scopes")
    if rows is None:
        return ()
    return tuple(
        ScopeSpan(
            tables.string(int(row["name"])), int(row["pid"]), int(row["thread_id"]), int(row["depth"]),
            int(row["start_ns"]), int(row["end_ns"]), *(_known(int(row[name])) for name in _SCOPE_SIZES),
        )
        for row in rows
    )  # fmt: skip


def _known(count: int) -> int | None:
    return None if count < 0 else count
