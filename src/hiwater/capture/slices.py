"""The moments of a capture: its peak, its end, and the highest of each slice of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hiwater.capture import program
from hiwater.capture.snapshot import Snapshot
from hiwater.capture.tables import Tables
from hiwater.errors import MomentOutOfRange


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of time with a peak of its own, in nanoseconds since the recording began. `index` is None for the
    open slice."""

    index: int | None
    start_ns: int
    end_ns: int
    peak_ns: int
    peak_bytes: int
    peak_blocks: int
    unlisted_bytes: int


def read_slices(tables: Tables) -> tuple[Slice, ...]:
    """All slices in time, the open one last."""
    names = ("start_ns", "end_ns", "peak_ns", "peak_bytes", "peak_blocks", "unlisted_bytes")
    columns = (tables["slices"][name].tolist() for name in names)
    closed = [Slice(index, *values) for index, values in enumerate(zip(*columns, strict=True))]
    start_ns = _epoch(tables)["slice_start_ns"]
    end_ns = max(start_ns, program.duration_ns(tables))
    peak_ns, peak_bytes, peak_blocks = (tables.header[f"slice_peak_{name}"] for name in ("ns", "bytes", "blocks"))
    return (*closed, Slice(None, start_ns, end_ns, peak_ns, peak_bytes, peak_blocks, 0))


def highest(slices: Sequence[Slice]) -> Slice:
    """The slice with the highest peak, the first of equal ones."""
    return max(slices, key=lambda piece: piece.peak_bytes)


def find_peak(tables: Tables) -> Snapshot:
    """The moment at which the sum of the counted kinds was highest in the recording, or in its `recorded_window` if
    it has one."""
    window = program.recorded_window(tables)
    if window is not None:
        start, end = window
        pieces = [piece for piece in read_slices(tables) if piece.start_ns >= start and piece.end_ns <= end]
        if pieces:
            return replace(of_slice(tables, highest(pieces)), name="peak")
    epoch = _epoch(tables)
    if tables.header["slice_peak_bytes"] > epoch["peak_bytes"]:
        return _open_peak(tables, "peak")
    peaks = tables["account_peaks"][: len(tables.account_node)]
    times, recorded = (epoch["peak_ns"], 0, program.duration_ns(tables)), (epoch["peak_bytes"], epoch["peak_blocks"])
    return _moment(tables, "peak", times, (peaks["peak_bytes"], peaks["peak_blocks"]), recorded)


def find_start(tables: Tables) -> Snapshot | None:
    """What was live when a recording inside another one began; None for any other recording, which begins with
    nothing."""
    window = program.recorded_window(tables)
    begun = (
        []
        if window is None
        else [piece for piece in read_slices(tables) if piece.start_ns == piece.end_ns == window[0]]
    )
    return replace(of_slice(tables, begun[0]), name="start") if begun else None


def find_end(tables: Tables) -> Snapshot:
    """What was live when the recording ended, or when it was last written to."""
    accounts, header, at_ns = tables["accounts"], tables.header, program.duration_ns(tables)
    live, recorded = (accounts["live_bytes"], accounts["live_blocks"]), (header["live_bytes"], header["live_blocks"])
    return _moment(tables, "end", (at_ns, at_ns, at_ns), live, recorded)


def find_refusal(tables: Tables, slices: Sequence[Slice], refused_at: Collection[int]) -> Snapshot | None:
    """What was live when memory was last refused, of the times `refused_at` at which that was noted."""
    for piece in reversed(slices):
        if piece.index is not None and piece.start_ns == piece.end_ns and piece.peak_ns in refused_at:
            return replace(of_slice(tables, piece), name="oom")
    return None


def find_window(tables: Tables, slices: Sequence[Slice], from_seconds: float, to_seconds: float) -> Snapshot:
    """The highest of the slices that touch the time from `from_seconds` to `to_seconds`. Raises MomentOutOfRange."""
    lasted = program.duration_ns(tables) / 1e9
    if not 0 <= from_seconds <= to_seconds or from_seconds > lasted:
        raise MomentOutOfRange(
            f"the recording has no time from {from_seconds:g} s to {to_seconds:g} s",
            f"give seconds between 0 and {lasted:.3f}, the first not above the second",
        )
    begin, end = from_seconds * 1e9, to_seconds * 1e9
    touching = [piece for piece in slices if piece.start_ns <= end and piece.end_ns > begin]
    return of_slice(tables, highest(touching or slices[-1:]))


def of_slice(tables: Tables, piece: Slice) -> Snapshot:
    """The snapshot at the peak of this slice."""
    if piece.index is None:
        return _open_peak(tables, "slice")
    entries, length = tables["slice_entries"], len(tables.account_node)
    values, blocks = np.zeros(length, np.int64), np.zeros(length, np.int64)
    for first, count in tables["slices"][["first_entry", "entry_count"]][: piece.index + 1].tolist():
        listed = entries[first : first + count]
        values[listed["account"]] = listed["bytes"]
        blocks[listed["account"]] = listed["blocks"]
    times, recorded = (piece.peak_ns, piece.start_ns, piece.end_ns), (piece.peak_bytes, piece.peak_blocks)
    return Snapshot(tables, "slice", *times, values, blocks, *recorded, piece.unlisted_bytes)


def highest_so_far(header: Mapping[str, Any]) -> tuple[int, int]:
    """The bytes of the peak of the whole recording, and its time, from the header alone."""
    epoch = f"epoch{header['epoch_index']}_peak_"
    pairs = ((header[f"{prefix}bytes"], header[f"{prefix}ns"]) for prefix in (epoch, "slice_peak_"))
    return max(pairs, key=lambda pair: pair[0])


def _epoch(tables: Tables) -> dict[str, int]:
    """The epoch in force: the highest closed slice and the start of the open one."""
    prefix = f"epoch{tables.header['epoch_index']}_"
    return {name: tables.header[prefix + name] for name in ("peak_bytes", "peak_blocks", "peak_ns", "slice_start_ns")}


def _open_peak(tables: Tables, name: str) -> Snapshot:
    """The peak of the open slice, which accounts save lazily: at their first change after it (the rule is in
    format.h)."""
    accounts, header = tables["accounts"], tables.header
    is_saved = accounts["generation"] == header["generation"]
    values = np.where(is_saved, accounts["saved_bytes"], accounts["live_bytes"])
    blocks = np.where(is_saved, accounts["saved_blocks"], accounts["live_blocks"])
    start_ns = _epoch(tables)["slice_start_ns"] if name == "slice" else 0
    times = (header["slice_peak_ns"], start_ns, max(start_ns, program.duration_ns(tables)))
    return _moment(tables, name, times, (values, blocks), (header["slice_peak_bytes"], header["slice_peak_blocks"]))


def _moment(
    tables: Tables, name: str, times: tuple[int, int, int], held: tuple[Any, Any], recorded: tuple[int, int]
) -> Snapshot:
    """`times` are those of the moment, and of the start and end of the time that it is the peak of; `held` are the
    bytes and blocks of accounts."""
    values, blocks = (column.astype(np.int64) for column in held)
    if tables.is_alive:  # an event may be half seen, and its free without its allocation
        values, blocks = np.maximum(values, 0), np.maximum(blocks, 0)
    return Snapshot(tables, name, *times, values, blocks, *recorded)
