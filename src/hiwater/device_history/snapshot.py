"""Snapshots of torch's caching allocator (`torch.cuda.memory._dump_snapshot`, `_snapshot`), as histories of devices.

What versions differ in, and how it is met:
    a list alone                segments without anything else (`torch.cuda.memory_snapshot()`)
    block "history"             torch 1.13 and 2.0: stack and size of a block in use; later "frames" and "requested_size"
    no "frames"                 history was off: everything is held by nobody that is known
    no "device_traces", empty   only what was held at the end is known
    no "time_us"                events are a microsecond apart, and a note says so
    "device_free" for "addr"    in events of memory that was refused
    "category", "user_metadata" stand before the stack, as a frame of their own
Facts are from torch 2.13's torch/cuda/memory.py, _memory_viz.py, and torch/csrc/cuda/memory_snapshot.cpp's documented fields.
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


def histories(snapshot: object, device_prefix: str = "cuda") -> list[DeviceHistory]:
    """One history for each device that the snapshot knows anything of.

    Raises ForeignFile for data that is no snapshot, CorruptCapture for one that contradicts the format.
    """
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments", snapshot.get("device_traces")), list):
        raise ForeignFile(
            "the pickle holds plain data, and no memory snapshot of torch's",
            "give a file that torch.cuda.memory._dump_snapshot() wrote",
        )
    try:
        return _histories(snapshot, device_prefix)
    except _DAMAGE as error:
        raise CorruptCapture(
            f"the snapshot is damaged: {type(error).__name__}: {error}", "dump it again, or use another copy"
        ) from error


def read(content: bytes, device_prefix: str = "cuda") -> list[DeviceHistory]:
    """The histories in a pickle. Raises what `histories` and `plain_pickle.load` do."""
    with plain_pickle.without_collection():
        return histories(plain_pickle.load(content), device_prefix)


def _histories(snapshot: Mapping[str, Any], prefix: str) -> list[DeviceHistory]:
    of_device: dict[int, list[Mapping[str, Any]]] = {}
    for segment in snapshot.get("segments", ()):
        of_device.setdefault(int(segment.get("device", 0)), []).append(segment)
    traces = snapshot.get("device_traces") or []
    numbers = sorted({*of_device, *(number for number, trace in enumerate(traces) if trace)}) or [0]
    return [
        _history(
            f"{prefix}:{number}",
            of_device.get(number, []),
            traces[number] if 0 <= number < len(traces) else [],
            snapshot,
        )
        for number in numbers
    ]


def _history(
    device: str, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any]
) -> DeviceHistory:
    held = allocator_state.of_segments(segments)
    told = AllocatorTrace()
    for event in trace:
        told.add(event)
    history = DeviceHistory(
        device, told.paths.stacks, told.events, Blocks(), held.reserved_bytes if segments else None, told.has_times
    )
    if len(told.events) and not told.has_times:
        history.notes.append("the snapshot has no times: its events are shown a microsecond apart")
    _add_live(history, segments, told.paths)
    history.facts["allocator_state"] = held.to_json() if segments else ""
    ours = snapshot.get("hiwater") or {}
    if ours.get("no_segments"):
        history.reserved_bytes, history.facts["allocator_state"] = None, ""
    if ours.get("source"):
        history.facts["source"] = str(ours["source"])
    if ours.get("most_events") and len(trace) >= ours["most_events"]:
        history.notes.append(f"the ring buffer of {ours['most_events']:,} events overflowed: the earliest are lost")
    if ours.get("ended_by_program"):
        history.notes.append("the program switched torch's history off meanwhile: events up to then are lost")
    for name in ("host_segments", "host_traces"):
        if snapshot.get(name):
            history.notes.append("the snapshot also tells of pinned host memory, which is not shown here")
            break
    return history


def _add_live(history: DeviceHistory, segments: Iterable[Mapping[str, Any]], paths: TracePaths) -> None:
    """The blocks that are held at the end: in use, or waiting to be free."""
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
