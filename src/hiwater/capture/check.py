"""Do the sums of a capture agree? O(accounts); run by every report and by tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hiwater.capture import program
from hiwater.capture.layout import is_counted
from hiwater.capture.process import STATE_RECORDING
from hiwater.capture.slices import Slice
from hiwater.capture.snapshot import Snapshot
from hiwater.capture.tables import Tables

_LARGEST_BYTES = 2.0**62  # above this, sums of int64 would wrap


def problems(tables: Tables, slices: Sequence[Slice], peak: Snapshot, end: Snapshot) -> list[str]:
    """What contradicts itself, in words.

    Exactly equal sums are asked of a recording that ended; of a killed one, sums within one event (an event moves one
    account, by no more than that account ever received); of one still being written only what holds at every instant;
    of a snapshot of such a one, equal sums.
    """
    found = _snapshot_problems(peak) + _snapshot_problems(end)
    if not slices[-1].peak_bytes >= tables.header["live_bytes"] and _has_whole_events(tables):
        found.append("more is live at the end than at the highest moment of the last slice")
    found += _slice_problems(tables, slices[:-1], peak)
    found += _replay_problems(tables, slices)
    return found


def _snapshot_problems(snapshot: Snapshot) -> list[str]:
    found, when = [], f"at the {snapshot.name}"
    counted = is_counted(snapshot.tables.account_kind)
    if len(snapshot.bytes) and float(np.abs(snapshot.bytes.astype(np.float64)).sum()) > _LARGEST_BYTES:
        return [f"figures {when} are beyond any memory"]
    if program.ended(snapshot.tables) == "recording" and not snapshot.tables.header.get("snapshot_ns"):
        return []
    for values, what in ((snapshot.bytes, "bytes"), (snapshot.blocks, "blocks")):
        negative = np.flatnonzero(values < 0)
        if len(negative):
            found.append(f"account {int(negative[0])} holds {int(values[negative[0]])} {what} {when}")
    blocks = int(snapshot.blocks[counted].sum())
    if blocks != snapshot.recorded_blocks and _has_whole_events(snapshot.tables):
        found.append(f"accounts sum to {blocks} blocks {when}, the recorder counted {snapshot.recorded_blocks}")
    total = int(snapshot.bytes[counted].sum())
    if abs(total - snapshot.recorded_bytes) > one_event_bytes(snapshot.tables):
        found.append(f"accounts sum to {total} bytes {when}, the recorder counted {snapshot.recorded_bytes}")
    return found


def _has_whole_events(tables: Tables) -> bool:
    return bool(tables.header["state"] != STATE_RECORDING)


def one_event_bytes(tables: Tables) -> int:
    """The most by which sums may differ: 0 unless the process ended in the middle of an event, killed or by a signal
    handler's `_exit`."""
    if _has_whole_events(tables) or program.ended(tables) == "recording" or len(tables.account_node) == 0:
        return 0
    return int(tables["accounts"]["total_bytes"].max())


def _slice_problems(tables: Tables, closed: Sequence[Slice], peak: Snapshot) -> list[str]:
    """Slices follow each other and none is higher than the peak."""
    found = [
        f"slice {later.index} begins before slice {earlier.index} ended"
        for earlier, later in pairwise(closed)
        if later.start_ns < earlier.end_ns
    ]
    start, end = program.recorded_window(tables) or (0, program.duration_ns(tables))
    highest = max((piece.peak_bytes for piece in closed if piece.start_ns >= start and piece.end_ns <= end), default=0)
    if highest > peak.recorded_bytes:
        found.append(f"a slice reaches {highest} bytes, above the peak of {peak.recorded_bytes}")
    return found[:3]


def _replay_problems(tables: Tables, slices: Sequence[Slice]) -> list[str]:
    """What is listed up to each closed slice sums to that slice's peak, where nothing is left unlisted."""
    entries, counted = tables["slice_entries"], is_counted(tables.account_kind)
    values, total = np.zeros(len(tables.account_node), np.int64), 0
    ranges = tables["slices"][["first_entry", "entry_count"]].tolist()
    for piece, (first, count) in zip(slices, ranges, strict=False):  # the open slice has no range
        listed = entries[first : first + count]
        listed = listed[counted[listed["account"]]]
        total += int(listed["bytes"].sum()) - int(values[listed["account"]].sum())
        values[listed["account"]] = listed["bytes"]
        if piece.unlisted_bytes == 0 and abs(total - piece.peak_bytes) > one_event_bytes(tables):
            return [f"accounts sum to {total} bytes in slice {piece.index}, the recorder counted {piece.peak_bytes}"]
    return []
