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
    peak_ns: int
    peak_bytes: int
    peak_blocks: int
    unlisted_bytes: int


def peak(capture: Capture) -> Snapshot:
    """The moment the counted kinds together were highest in the whole recording; in `recorded_window`, where it has one."""
    if capture.recorded_window is not None:
        start, end = capture.recorded_window
        pieces = [piece for piece in capture.slices if piece.start_ns >= start and piece.end_ns <= end]
        if pieces:
            return replace(of_slice(capture, max(pieces, key=lambda piece: piece.peak_bytes)), name="peak")
    best = _epoch(capture)
    if capture.header["slice_peak_bytes"] > best["peak_bytes"]:
        return _open_peak(capture, "peak")
    peaks = capture.tables["account_peaks"][: len(capture.account_node)]
    return _moment(
        capture,
        "peak",
        best["peak_ns"],
        0,
        capture.process.duration_ns,
        peaks["peak_bytes"],
        peaks["peak_blocks"],
        (best["peak_bytes"], best["peak_blocks"]),
    )


def end(capture: Capture) -> Snapshot:
    """What was live when the recording ended, or when it was last written to."""
    accounts, at_ns = capture.tables["accounts"], capture.process.duration_ns
    recorded = (capture.header["live_bytes"], capture.header["live_blocks"])
    return _moment(capture, "end", at_ns, at_ns, at_ns, accounts["live_bytes"], accounts["live_blocks"], recorded)


def slices(capture: Capture) -> tuple[Slice, ...]:
    """All slices in time, the open one last."""
    names = ("start_ns", "end_ns", "peak_ns", "peak_bytes", "peak_blocks", "unlisted_bytes")
    columns = (capture.tables["slices"][name].tolist() for name in names)
    closed = [Slice(index, *values) for index, values in enumerate(zip(*columns, strict=True))]
    header, start_ns = capture.header, _epoch(capture)["slice_start_ns"]
    end_ns = max(start_ns, capture.process.duration_ns)
    return (
        *closed,
        Slice(
            None, start_ns, end_ns, header["slice_peak_ns"], header["slice_peak_bytes"], header["slice_peak_blocks"], 0
        ),
    )


def oom(capture: Capture) -> Snapshot:
    """What was live when memory was last refused, of the refusals at which that was noted. Raises MomentOutOfRange."""
    refused_at = {marker.at_ns for marker in capture.refusals}
    for piece in reversed(capture.slices):
        if piece.index is not None and piece.start_ns == piece.end_ns and piece.peak_ns in refused_at:
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
    return of_slice(capture, max(touching, key=lambda piece: piece.peak_bytes))


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
    """What every account held when this slice was highest."""
    if piece.index is None:
        return _open_peak(capture, "slice")
    entries = capture.tables["slice_entries"]
    values, blocks = np.zeros(len(capture.account_node), np.int64), np.zeros(len(capture.account_node), np.int64)
    for first, count in capture.tables["slices"][["first_entry", "entry_count"]][: piece.index + 1].tolist():
        listed = entries[first : first + count]
        values[listed["account"]] = listed["bytes"]
        blocks[listed["account"]] = listed["blocks"]
    return Snapshot(
        capture,
        "slice",
        piece.peak_ns,
        piece.start_ns,
        piece.end_ns,
        values,
        blocks,
        piece.peak_bytes,
        piece.peak_blocks,
        piece.unlisted_bytes,
    )


def _epoch(capture: Capture) -> dict[str, int]:
    """The epoch in force: the highest closed slice and the start of the open one."""
    prefix = f"epoch{capture.header['epoch_index']}_"
    return {name: capture.header[prefix + name] for name in ("peak_bytes", "peak_blocks", "peak_ns", "slice_start_ns")}


def _open_peak(capture: Capture, name: str) -> Snapshot:
    """The peak of the open slice, which accounts save lazily: at their first change after it (the rule is in format.h)."""
    accounts, header = capture.tables["accounts"], capture.header
    is_saved = accounts["generation"] == header["generation"]
    values = np.where(is_saved, accounts["saved_bytes"], accounts["live_bytes"])
    blocks = np.where(is_saved, accounts["saved_blocks"], accounts["live_blocks"])
    start_ns = _epoch(capture)["slice_start_ns"] if name == "slice" else 0
    end_ns = max(start_ns, capture.process.duration_ns)
    return _moment(
        capture,
        name,
        header["slice_peak_ns"],
        start_ns,
        end_ns,
        values,
        blocks,
        (header["slice_peak_bytes"], header["slice_peak_blocks"]),
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
