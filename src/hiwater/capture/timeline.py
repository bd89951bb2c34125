"""What a recording has over time: samples of memory, processes watched from outside, scopes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hiwater._os.sizes import format_size
from hiwater.capture import program
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.paths import Ints
from hiwater.capture.references import Records
from hiwater.capture.slices import read_slices
from hiwater.capture.tables import Tables, known
from hiwater.capture.writer import UNKNOWN_EXIT_STATUS

_MOST_BYTES = 1 << 50
_SCOPE_SIZES = ("start_bytes", "end_bytes", "peak_bytes")
_ALLOCATED = ("allocated_start_bytes", "allocated_end_bytes", "allocated_peak_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Samples over time: int64 arrays of one dimension, with one element for each sample.

    `at_ns` is the time since the recording began, in nanoseconds and ascending. `resident_bytes` is resident memory
    without hiwater's own, which is `overhead_bytes`. `allocated_bytes` are the live bytes of all counted kinds, and
    `kind_bytes[kind]` those of one kind, counted or not. `mapped_bytes` are the resident pages of files and of shared
    memory, hiwater's among them; 0 where that was not recorded.
    """

    at_ns: Ints
    resident_bytes: Ints
    allocated_bytes: Ints
    kind_bytes: dict[str, Ints]
    overhead_bytes: Ints
    mapped_bytes: Ints

    def __len__(self) -> int:
        return len(self.at_ns)

    def __repr__(self) -> str:
        return f"<Timeline of {len(self):,} samples>"


@dataclass(frozen=True, slots=True, eq=False)
class WatchedProcess:
    """A process that `hiwater sample` watched. Times are nanoseconds since the recording began; `end_ns` is None while
    it runs.

    `exact` says that `peak_bytes` is the kernel's high-water mark up to the process's end; else it is a lower bound.
    `exit_status` is its exit code, the negative number of the signal that ended it, or None if unknown. `at_ns` and
    `resident_bytes` are int64 arrays with one element for each sample, ascending in time.
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

    def __repr__(self) -> str:
        how = "" if self.exact else "at least "
        return f"<WatchedProcess {self.pid} {self.name[:40]!r}: peak {how}{format_size(self.peak_bytes)} resident>"


@dataclass(frozen=True, slots=True)
class ScopeSpan:
    """A scope of the program that `hiwater sample` watched, or a phase of a recorded one. Times are nanoseconds
    since the recording began. Sizes are resident bytes, and allocated bytes where their name says so; None if
    unknown, and at the end of a phase that has not ended. `allocated_last_bytes` is the size at the phase's end, or
    of a phase that has not ended, when its process was last heard of: its peak is at least `allocated_peak_bytes`."""

    name: str
    pid: int
    thread_id: int
    depth: int
    start_ns: int
    end_ns: int
    start_bytes: int | None
    end_bytes: int | None
    peak_bytes: int | None
    allocated_start_bytes: int | None = None
    allocated_end_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    allocated_last_bytes: int | None = None


def read_timeline(tables: Tables) -> Timeline:
    rows = tables["timeline"]
    kinds = {kind: rows["live_bytes"][:, index].astype(np.int64) for index, kind in enumerate(KINDS)}
    overhead, mapped = (known_column(rows, name) for name in ("overhead_bytes", "mapped_bytes"))
    resident = np.maximum(0, rows["resident_bytes"].astype(np.int64) - overhead)
    return Timeline(rows["at_ns"].astype(np.int64), resident, allocated_bytes(rows), kinds, overhead, mapped)


def known_column(rows: Records, name: str) -> Ints:
    """Bytes that not all captures have; then 0. No machine has more than `_MOST_BYTES`."""
    if name not in (rows.dtype.names or ()):
        return np.zeros(len(rows), np.int64)
    column: Ints = np.clip(rows[name].astype(np.int64), 0, _MOST_BYTES)
    return column


def allocated_bytes(rows: Records) -> Ints:
    """For each of these records of the timeline, the live bytes of all counted kinds."""
    summed: Ints = rows["live_bytes"][:, : len(COUNTED_KINDS)].sum(axis=1, dtype=np.int64)
    return summed


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
        command=program.arguments(tables.text(int(row["command"])) or "[]"),
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
    last_ns, last_bytes, highest_since = program.duration_ns(tables), int(tables.header["live_bytes"]), _highest(tables)
    spans = []
    for row in rows:
        is_open = int(row["end_ns"]) == 0 and "allocated_peak_bytes" in (rows.dtype.names or ())
        end_ns = max(last_ns, int(row["start_ns"])) if is_open else int(row["end_ns"])
        sizes = [known(row[name]) for name in (*_SCOPE_SIZES, *_ALLOCATED) if name in (rows.dtype.names or ())]
        if is_open:
            # The recorder notes a peak when a phase ends. The peaks of the slices of its time are known before.
            sizes[5] = max(sizes[5] or 0, last_bytes, highest_since(int(row["start_ns"])))
            sizes[4] = None
        span = ScopeSpan(
            tables.string(int(row["name"])), int(row["pid"]), int(row["thread_id"]), int(row["depth"]),
            int(row["start_ns"]), end_ns, *sizes,
        )  # fmt: skip
        spans.append(replace(span, allocated_last_bytes=last_bytes if is_open else span.allocated_end_bytes))
    return tuple(sorted(spans, key=lambda span: span.end_ns))


def _highest(tables: Tables) -> Callable[[int], int]:
    """A function that returns the highest sum of live bytes from a time on that a slice or a sample of the timeline
    has."""
    slices, samples = read_slices(tables), tables["timeline"]
    at = np.concatenate([np.array([piece.peak_ns for piece in slices], np.int64), samples["at_ns"].astype(np.int64)])
    live = np.concatenate([np.array([piece.peak_bytes for piece in slices], np.int64), allocated_bytes(samples)])
    order = np.argsort(at, kind="stable")
    at, highest = at[order], np.maximum.accumulate(live[order][::-1])[::-1]

    def since(start_ns: int) -> int:
        place = int(np.searchsorted(at, start_ns))
        return int(highest[place]) if place < len(highest) else 0

    return since
