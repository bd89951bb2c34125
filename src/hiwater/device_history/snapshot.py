"""Snapshots of torch's caching allocator (`torch.cuda.memory._dump_snapshot`, `_snapshot`), as histories of devices.

How the formats of torch's versions differ, and how each difference is read:

- a list: segments alone (`torch.cuda.memory_snapshot()`)
- block "history": torch 1.13 and 2.0: stack and size of a block in use; later "frames" and "requested_size"
- no "frames": the history was off: blocks have no stacks
- "device_traces" not or empty: only the blocks at the end are known
- no "time_us": events are shown a microsecond apart, and a note says so
- "device_free", not "addr": in events of refused memory
- "category", "user_metadata": become a frame above the root of the stack

Facts are from torch 2.13's torch/cuda/memory.py, _memory_viz.py, and torch/csrc/cuda/memory_snapshot.cpp's documented
fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hiwater import allocator_state
from hiwater.device_history import plain_pickle
from hiwater.device_history.events import Blocks, DeviceHistory
from hiwater.device_history.trace import AllocatorTrace, TracePaths
from hiwater.errors import CorruptCapture, ForeignFile

_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError, RecursionError)


def histories(snapshot: object) -> list[DeviceHistory]:
    """One history for each device in the snapshot.

    Raises ForeignFile for data that is no snapshot, CorruptCapture for a snapshot that contradicts the format.
    """
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments", snapshot.get("device_traces")), list):
        raise ForeignFile(
            "the pickle has plain data, but no memory snapshot of torch",
            "give a file that torch.cuda.memory._dump_snapshot() wrote",
        )
    try:
        return _histories(snapshot)
    except _DAMAGE as error:
        raise CorruptCapture(
            f"the snapshot is damaged: {type(error).__name__}: {error}", "dump it again, or use another copy"
        ) from error


def read(content: bytes) -> list[DeviceHistory]:
    """The histories in a pickle. Raises the errors of `histories` and `plain_pickle.load`."""
    with plain_pickle.without_collection():
        return histories(plain_pickle.load(content))


def _histories(snapshot: Mapping[str, Any]) -> list[DeviceHistory]:
    of_device: dict[int, list[Mapping[str, Any]]] = {}
    for segment in snapshot.get("segments", ()):
        of_device.setdefault(int(segment.get("device", 0)), []).append(segment)
    traces = snapshot.get("device_traces") or []
    numbers = sorted({*of_device, *(number for number, trace in enumerate(traces) if trace)}) or [0]
    trace_of = dict(enumerate(traces))
    return [
        _history(f"cuda:{number}", of_device.get(number, []), trace_of.get(number, []), snapshot) for number in numbers
    ]


def _history(
    device: str, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any]
) -> DeviceHistory:
    held = allocator_state.of_segments(segments)
    parsed = AllocatorTrace()
    for event in trace:
        parsed.add(event)
    reserved = held.reserved_bytes if segments else None
    history = DeviceHistory(device, parsed.paths.stacks, parsed.events, Blocks(), reserved, parsed.has_times)
    if len(parsed.events) and not parsed.has_times:
        history.notes.append("the snapshot has no times: its events are shown a microsecond apart")
    _add_live(history, segments, parsed.paths)
    history.facts["allocator_state"] = held.to_json() if segments else ""
    ours = snapshot.get("hiwater") or {}
    if ours.get("most_events") and len(trace) >= ours["most_events"]:
        history.notes.append(f"the ring buffer of {ours['most_events']:,} events overflowed: the earliest are lost")
    if ours.get("ended_by_program"):
        history.notes.append("the program switched torch's history off: earlier events are lost")
    for name in ("host_segments", "host_traces"):
        if snapshot.get(name):
            history.notes.append("the snapshot also has pinned host memory, which is not shown here")
            break
    return history


def _add_live(history: DeviceHistory, segments: Iterable[Mapping[str, Any]], paths: TracePaths) -> None:
    """Add the blocks that are allocated at the end: in use, or waiting to be freed."""
    live = history.live
    for segment in segments:
        address, stream = segment["address"], segment.get("stream", 0)
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                # Before torch 2.1 blocks had no address: they follow one another in their segment.
                live.address.append(block.get("address", address))
                live.bytes.append(allocator_state.requested_of(block))
                live.count.append(1)
                live.stack.append(paths.of_block(block, stream))
            address += block["size"]
