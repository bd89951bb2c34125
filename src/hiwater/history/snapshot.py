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

from hiwater.capture.moment import Frame
from hiwater.errors import CorruptCapture, ForeignFile
from hiwater.history import state
from hiwater.history.events import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_STACK,
    OOM,
    OTHER,
    SEGMENT_GROWS,
    SEGMENT_SHRINKS,
    DeviceHistory,
    Stacks,
)

_ACTIONS = {
    "alloc": ALLOC, "free_requested": FREE_REQUESTED, "free_completed": FREE_COMPLETED, "segment_alloc": SEGMENT_GROWS,
    "segment_map": SEGMENT_GROWS, "segment_free": SEGMENT_SHRINKS, "segment_unmap": SEGMENT_SHRINKS, "oom": OOM,
    "free": FREE_COMPLETED,  # as torch 1.13 called it
}  # fmt: skip
# Files of native frames: torch mixes them with Python's where it was asked for stacks="all".
_NATIVE_SUFFIXES = (".cpp", ".cc", ".c", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".so", ".S", ".inl")
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
    from hiwater.history.events import Blocks, Events

    held = state.of_segments(segments)
    paths = _Paths(Stacks())
    history = DeviceHistory(device, paths.stacks, Events(), Blocks(), held.reserved_bytes if segments else None)
    _add_events(history, trace, paths)
    _add_live(history, segments, paths)
    history.facts["allocator_state"] = held.to_json() if segments else ""
    ours = snapshot.get("hiwater") or {}
    if ours.get("no_segments"):
        history.reserved_bytes, history.facts["allocator_state"] = None, ""
    if ours.get("source"):
        history.facts["source"] = str(ours["source"])
    if ours.get("most_events") and len(trace) >= ours["most_events"]:
        history.notes.append(f"the ring buffer of {ours['most_events']:,} events overflowed: the earliest are lost")
    for name in ("host_segments", "host_traces"):
        if snapshot.get(name):
            history.notes.append("the snapshot also tells of pinned host memory, which is not shown here")
            break
    return history


def _add_events(history: DeviceHistory, trace: Iterable[Mapping[str, Any]], paths: _Paths) -> None:
    """A million events are not rare: what is done for each is done here."""
    events, time_us, has_times, known = history.events, 0, False, _ACTIONS.get
    add_action, add_address, add_size = events.action.append, events.address.append, events.bytes.append
    add_time, add_stack = events.time_us.append, events.stack.append
    for event in trace:
        action = known(event["action"], OTHER)
        if action == OTHER:
            continue  # "snapshot", "annotate", and what later versions bring: nothing changes hands
        said = event.get("time_us")
        if said is None:
            time_us += 1
        else:
            time_us, has_times = said, True
        size = event["size"]
        if type(size) is not int or size < 0:
            raise ValueError(f"{size!r} is no size")
        add_action(action)
        add_address(0 if action == OOM else event["addr"])
        add_size(size)
        add_time(time_us)
        add_stack(paths.number(event) if action in (ALLOC, OOM) else NO_STACK)
    history.has_times = has_times
    if len(events) and not has_times:
        history.notes.append("the snapshot has no times: its events are shown a microsecond apart")


def _add_live(history: DeviceHistory, segments: Iterable[Mapping[str, Any]], paths: _Paths) -> None:
    """The blocks that are held at the end: in use, or waiting to be free."""
    live = history.live
    for segment in segments:
        address, stream = segment["address"], segment.get("stream", 0)
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                # Before torch 2.1 blocks had no address: they follow one another in their segment.
                live.address.append(block.get("address", address))
                live.bytes.append(state.requested_of(block))
                live.count.append(1)
                live.stack.append(paths.of_block(block, stream))
            address += block["size"]


class _Paths:
    """Call paths of torch's frames, innermost first there. One dict of a frame serves all stacks it is in, so it is looked at once."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._frames: dict[int, tuple[Frame, Mapping[str, Any]]] = {}  # with the dict, so that its id stays its own

    def number(self, event: Mapping[str, Any]) -> int:
        """The stack of an event."""
        frames = event.get("frames")
        label = _label(event)
        if not frames and not label:
            return NO_STACK
        return self._number(frames or (), event.get("stream", 0), label)

    def of_block(self, block: Mapping[str, Any], stream: int) -> int:
        """The stack that a block in use was allocated by."""
        frames = block.get("frames")
        if frames is None and block.get("history"):
            frames = block["history"][0].get("frames")
        return self._number(frames, stream, "") if frames else NO_STACK

    def _number(self, frames: Sequence[Mapping[str, Any]], stream: int, label: str) -> int:
        key = (*map(id, frames), stream, label)
        number = self._numbers.get(key)
        if number is None:
            path = tuple(self._frame(frame) for frame in reversed(frames))
            if label:
                path = (Frame(label, "", 0), *path)
            number = self._numbers[key] = self.stacks.number(f"stream {int(stream):#x}" if stream else "stream 0", path)
        return number

    def _frame(self, frame: Mapping[str, Any]) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            known = self._frames[id(frame)] = (_frame_of(frame), frame)
        return known[0]


def _frame_of(frame: Mapping[str, Any]) -> Frame:
    """A native frame has no file here, as in every other stack of hiwater's: its place is part of its name."""
    name, file, line = str(frame["name"]), str(frame["filename"]), frame["line"]
    if type(line) is not int:
        raise TypeError(f"{line!r} is no line")
    if file in ("", "??") or file.endswith(_NATIVE_SUFFIXES):
        return Frame(name or "[native]", "", 0)
    return Frame(name, file, line if 0 <= line < 1 << 32 else 0)


def _label(event: Mapping[str, Any]) -> str:
    """What a user said of an allocation: a category, or metadata set with `_set_memory_metadata`."""
    if not event.get("category") and not event.get("user_metadata"):
        return ""
    said = [str(event[name]) for name in ("category", "user_metadata") if event.get(name)]
    return f"[{', '.join(said)}]"
