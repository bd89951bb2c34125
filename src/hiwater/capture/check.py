"""Do the sums of a capture agree? O(accounts); run by every report and by tests."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hiwater.capture.layout import is_counted
from hiwater.capture.process import STATE_RECORDING
from hiwater.errors import CorruptCapture, ExtraMissing

if TYPE_CHECKING:
    from hiwater.capture.model import Capture
    from hiwater.capture.snapshot import Snapshot

_LARGEST_BYTES = 2.0**62  # above this, sums of int64 would wrap


def problems(capture: Capture) -> list[str]:
    """What contradicts itself, in words.

    Exactly equal sums are asked of a recording that ended; of a killed one, sums within one event (an event moves one
    account, by no more than that account ever received); of one still being written only what holds at every instant.
    """
    found = [problem for snapshot in (capture.peak, capture.end) for problem in _snapshot_problems(capture, snapshot)]
    if not capture.slices[-1].peak_bytes >= capture.header["live_bytes"] and _has_whole_events(capture):
        found.append("more is live at the end than at the highest moment of the last slice")
    found += _slice_problems(capture)
    found += _replay_problems(capture)
    found += _history_problems(capture)
    return found


def _history_problems(capture: Capture) -> list[str]:
    """What is attached can be read, and every history in it agrees with itself."""
    try:
        histories = capture.device_histories
    except CorruptCapture as error:
        return [f"what GPU libraries left in it cannot be read ({error.problem})"]
    except ExtraMissing:
        return []
    return [f"{one.device}: {problem}" for one in histories for problem in problems(one)]


def _snapshot_problems(capture: Capture, snapshot: Snapshot) -> list[str]:
    found = []
    counted = is_counted(capture.account_kind)
    if len(snapshot.bytes) and float(np.abs(snapshot.bytes.astype(np.float64)).sum()) > _LARGEST_BYTES:
        return [f"figures at the {snapshot.name} are beyond any memory"]
    if capture.process.ended == "recording":
        return []
    for values, what in ((snapshot.bytes, "bytes"), (snapshot.blocks, "blocks")):
        negative = np.flatnonzero(values < 0)
        if len(negative):
            found.append(f"account {int(negative[0])} holds {int(values[negative[0]])} {what} at the {snapshot.name}")
    blocks = int(snapshot.blocks[counted].sum())
    if blocks != snapshot.recorded_blocks and _has_whole_events(capture):
        found.append(
            f"accounts sum to {blocks} blocks at the {snapshot.name}, the recorder counted {snapshot.recorded_blocks}"
        )
    total = int(snapshot.bytes[counted].sum())
    if abs(total - snapshot.recorded_bytes) > one_event_bytes(capture):
        found.append(
            f"accounts sum to {total} bytes at the {snapshot.name}, the recorder counted {snapshot.recorded_bytes}"
        )
    return found


def _has_whole_events(capture: Capture) -> bool:
    return bool(capture.header["state"] != STATE_RECORDING)


def one_event_bytes(capture: Capture) -> int:
    """The most by which sums may differ: 0 unless the process ended in the middle of an event, killed or by a signal handler's `_exit`."""
    if _has_whole_events(capture) or capture.process.ended == "recording" or len(capture.account_node) == 0:
        return 0
    return int(capture.tables["accounts"]["total_bytes"].max())


def _slice_problems(capture: Capture) -> list[str]:
    """Slices follow each other and none is higher than the peak."""
    closed = capture.slices[:-1]
    found = [
        f"slice {later.index} begins before slice {earlier.index} ended"
        for earlier, later in pairwise(closed)
        if later.start_ns < earlier.end_ns
    ]
    start, end = capture.recorded_window or (0, capture.process.duration_ns)
    highest = max((piece.peak_bytes for piece in closed if piece.start_ns >= start and piece.end_ns <= end), default=0)
    if highest > capture.peak.recorded_bytes:
        found.append(f"a slice reaches {highest} bytes, above the peak of {capture.peak.recorded_bytes}")
    return found[:3]


def _replay_problems(capture: Capture) -> list[str]:
    """What is listed up to each closed slice sums to that slice's peak, where nothing is left unlisted."""
    entries, counted = capture.tables["slice_entries"], is_counted(capture.account_kind)
    values, total = np.zeros(len(capture.account_node), np.int64), 0
    ranges = capture.tables["slices"][["first_entry", "entry_count"]].tolist()
    for piece, (first, count) in zip(capture.slices, ranges, strict=False):  # the open slice has no range
        listed = entries[first : first + count]
        listed = listed[counted[listed["account"]]]
        total += int(listed["bytes"].sum()) - int(values[listed["account"]].sum())
        values[listed["account"]] = listed["bytes"]
        if piece.unlisted_bytes == 0 and abs(total - piece.peak_bytes) > one_event_bytes(capture):
            return [f"accounts sum to {total} bytes in slice {piece.index}, the recorder counted {piece.peak_bytes}"]
    return []
