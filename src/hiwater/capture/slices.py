"""The moments of a capture: its peak, its end, and the highest of each slice of time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hiwater.capture.snapshot import Snapshot
from hiwater.errors import BadRequest, MomentOutOfRange

if TYPE_CHECKING:
    from hiwater.capture.model import Capture


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


def peak(capture: Capture) -> Snapshot:
    """The moment the counted kinds together were highest in the whole recording; in `recorded_window`, where it has one."""
    if capture.recorded_window is not None:
        start, end = capture.recorded_window
        pieces = [piece for piece in capture.slices if piece.start_ns >= start and piece.end_ns <= end]
        if pieces:
            return replace(of_slice(capture, max(pieces, key=lambda piece: piece.mark_bytes)), name="peak")
    best = _epoch(capture)
    if capture.header["mark_bytes"] > best["best_bytes"]:
        return _open_mark(capture, "peak")
    cold = capture.tables["ledger_cold"][: len(capture.ledger_node)]
    return _moment(
        capture,
        "peak",
        best["best_ns"],
        0,
        capture.process.duration_ns,
        cold["peak_bytes"],
        cold["peak_blocks"],
        (best["best_bytes"], best["best_blocks"]),
    )


def end(capture: Capture) -> Snapshot:
    """What was live when the recording ended, or when it was last written to."""
    ledgers, at_ns = capture.tables["ledgers"], capture.process.duration_ns
    recorded = (capture.header["live_bytes"], capture.header["live_blocks"])
    return _moment(capture, "end", at_ns, at_ns, at_ns, ledgers["live_bytes"], ledgers["live_blocks"], recorded)


def slices(capture: Capture) -> tuple[Slice, ...]:
    """All slices in time, the open one last."""
    names = ("start_ns", "end_ns", "mark_ns", "mark_bytes", "mark_blocks", "unlisted_bytes")
    columns = (capture.tables["slices"][name].tolist() for name in names)
    closed = [Slice(index, *values) for index, values in enumerate(zip(*columns, strict=True))]
    header, start_ns = capture.header, _epoch(capture)["slice_start_ns"]
    end_ns = max(start_ns, capture.process.duration_ns)
    return (
        *closed,
        Slice(None, start_ns, end_ns, header["mark_ns"], header["mark_bytes"], header["mark_blocks"], 0),
    )


def oom(capture: Capture) -> Snapshot:
    """What was live when memory was last refused, of the refusals at which that was noted. Raises MomentOutOfRange."""
    refused_at = {mark.at_ns for mark in capture.refusals}
    for piece in reversed(capture.slices):
        if piece.index is not None and piece.start_ns == piece.end_ns and piece.mark_ns in refused_at:
            return replace(of_slice(capture, piece), name="oom")
    if capture.device_refusals:
        raise MomentOutOfRange("RAM was never refused to this program, but memory of a device was", "add --kind device")
    raise MomentOutOfRange("memory was never refused to this program", "look at the peak or the end instead")


def window(capture: Capture, from_seconds: float, to_seconds: float) -> Snapshot:
    """The highest of the slices that touch the time from `from_seconds` to `to_seconds`. Raises MomentOutOfRange."""
    lasted = capture.process.duration_ns / 1e9
    if not 0 <= from_seconds <= to_seconds or from_seconds > lasted:
        raise MomentOutOfRange(
            f"the recording has no time from {from_seconds:g} s to {to_seconds:g} s",
            f"give seconds between 0 and {lasted:.3f}, the first not above the second",
        )
    begin, end = from_seconds * 1e9, to_seconds * 1e9
    touching = [piece for piece in capture.slices if piece.start_ns <= end and piece.end_ns > begin]
    if not touching:
        touching = [capture.slices[-1]]
    return of_slice(capture, max(touching, key=lambda piece: piece.mark_bytes))


def named(capture: Capture, at: str | float) -> Snapshot:
    """The moment that `at` names: "peak", "end", "oom", seconds since the start, or a window "T1:T2" in seconds.

    Raises BadRequest for anything else, MomentOutOfRange for a time the recording does not have.
    """
    if at == "peak":
        return capture.peak
    if at == "end":
        return capture.end
    if at == "oom":
        return capture.oom
    first, _, last = str(at).partition(":")
    try:
        return capture.window(float(first), float(last or first))
    except ValueError:
        raise BadRequest(f"{at!r} is none of peak, end, oom, SECONDS, T1:T2", "name a moment so") from None


def of_slice(capture: Capture, piece: Slice) -> Snapshot:
    """What every ledger held when this slice was highest."""
    if piece.index is None:
        return _open_mark(capture, "slice")
    entries = capture.tables["slice_entries"]
    values, blocks = np.zeros(len(capture.ledger_node), np.int64), np.zeros(len(capture.ledger_node), np.int64)
    for first, count in capture.tables["slices"][["first_entry", "entry_count"]][: piece.index + 1].tolist():
        listed = entries[first : first + count]
        values[listed["ledger"]] = listed["bytes"]
        blocks[listed["ledger"]] = listed["blocks"]
    return Snapshot(
        capture,
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


def _epoch(capture: Capture) -> dict[str, int]:
    """The epoch in force: the highest closed slice and the start of the open one."""
    prefix = f"epoch{capture.header['epoch_index']}_"
    return {name: capture.header[prefix + name] for name in ("best_bytes", "best_blocks", "best_ns", "slice_start_ns")}


def _open_mark(capture: Capture, name: str) -> Snapshot:
    """The open slice's mark, which ledgers save lazily: at their first change after it (the rule is in format.h)."""
    ledgers, header = capture.tables["ledgers"], capture.header
    is_saved = ledgers["generation"] == header["generation"]
    values = np.where(is_saved, ledgers["saved_bytes"], ledgers["live_bytes"])
    blocks = np.where(is_saved, ledgers["saved_blocks"], ledgers["live_blocks"])
    start_ns = _epoch(capture)["slice_start_ns"] if name == "slice" else 0
    end_ns = max(start_ns, capture.process.duration_ns)
    return _moment(
        capture,
        name,
        header["mark_ns"],
        start_ns,
        end_ns,
        values,
        blocks,
        (header["mark_bytes"], header["mark_blocks"]),
    )


def _moment(
    capture: Capture,
    name: str,
    at_ns: int,
    start_ns: int,
    end_ns: int,
    values: Any,
    blocks: Any,
    recorded: tuple[int, int],
) -> Snapshot:
    values, blocks = values.astype(np.int64), blocks.astype(np.int64)
    if capture.is_alive:  # an event may be half seen, and its free without its allocation
        values, blocks = np.maximum(values, 0), np.maximum(blocks, 0)
    return Snapshot(capture, name, at_ns, start_ns, end_ns, values, blocks, *recorded)
