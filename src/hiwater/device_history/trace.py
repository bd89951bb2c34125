"""Reads the events of a torch snapshot into arrays, and their call paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hiwater.capture.paths import Frame
from hiwater.device_history import events as kinds
from hiwater.device_history.events import NO_STACK, Events, EventStacks

ACTIONS = {
    "alloc": kinds.ALLOC, "free_requested": kinds.FREE_REQUESTED, "free_completed": kinds.FREE_COMPLETED,
    "segment_alloc": kinds.SEGMENT_GROWS, "segment_map": kinds.SEGMENT_GROWS, "segment_free": kinds.SEGMENT_SHRINKS,
    "segment_unmap": kinds.SEGMENT_SHRINKS, "oom": kinds.OOM, "free": kinds.FREE_COMPLETED,  # as torch 1.13 called it
}  # fmt: skip
# Files of native frames: torch mixes them with Python's under stacks="all".
_NATIVE_SUFFIXES = (".cpp", ".cc", ".c", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".so", ".S", ".inl")


class AllocatorTrace:
    """Reads one device's list of events. `events` has those that allocate, free or refuse memory."""

    def __init__(self) -> None:
        self.events = Events()
        self.paths = TracePaths(EventStacks())
        self.has_times = False
        self._time_us = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event. Events without times are a microsecond apart.

        Raises KeyError, TypeError, ValueError, OverflowError or AttributeError if it is no event.
        """
        action = ACTIONS.get(event["action"])
        if action is None:
            return  # "snapshot", "annotate" and actions of later versions: they change no memory
        size, time_us = event["size"], event.get("time_us")
        if type(size) is not int or size < 0:
            raise ValueError(f"{size!r} is not a size")
        if time_us is None:
            self._time_us += 1
        else:
            self._time_us, self.has_times = time_us, True
        events = self.events
        events.action.append(action)
        events.address.append(0 if action == kinds.OOM else event["addr"])
        events.bytes.append(size)
        events.time_us.append(self._time_us)
        events.stack.append(self.paths.of_event(event) if action in (kinds.ALLOC, kinds.OOM) else NO_STACK)


class TracePaths:
    """Call paths of torch's frames, which are innermost first. All stacks share one dict for each frame, so each is
    converted once."""

    def __init__(self, stacks: EventStacks) -> None:
        self.stacks = stacks
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._frames: dict[int, tuple[Frame, Mapping[str, Any]]] = {}  # with the dict, so that its id is not used again

    def of_event(self, event: Mapping[str, Any]) -> int:
        frames = event.get("frames")
        label = label_of(event)
        if not frames and not label:
            return NO_STACK
        return self.number(frames or (), event.get("stream", 0), label)

    def of_block(self, block: Mapping[str, Any], stream: int) -> int:
        """The stack that allocated a block in use."""
        frames = block.get("frames")
        if frames is None and block.get("history"):
            frames = block["history"][0].get("frames")
        return self.number(frames, stream, "") if frames else NO_STACK

    def number(self, frames: Sequence[Mapping[str, Any]], stream: int, label: str) -> int:
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
    """The frame. A native one has no file, as in all stacks of hiwater: its place is part of its name."""
    name, file, line = str(frame["name"]), str(frame["filename"]), frame["line"]
    if type(line) is not int:
        raise TypeError(f"{line!r} is not a line")
    if file in ("", "??") or file.endswith(_NATIVE_SUFFIXES):
        return Frame(name or "[native]", "", 0)
    return Frame(name, file, line if 0 <= line < 1 << 32 else 0)


def label_of(event: Mapping[str, Any]) -> str:
    """The user's label of an allocation: a category, or metadata set with `_set_memory_metadata`."""
    if not event.get("category") and not event.get("user_metadata"):
        return ""
    said = [str(event[name]) for name in ("category", "user_metadata") if event.get(name)]
    return f"[{', '.join(said)}]"
