"""Events of a torch snapshot, each made into a few numbers, and the call paths that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hiwater.capture.paths import Frame
from hiwater.device_history.events import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_STACK,
    OOM,
    OTHER,
    SEGMENT_GROWS,
    SEGMENT_SHRINKS,
    Events,
    EventStacks,
)

ACTIONS = {
    "alloc": ALLOC, "free_requested": FREE_REQUESTED, "free_completed": FREE_COMPLETED, "segment_alloc": SEGMENT_GROWS,
    "segment_map": SEGMENT_GROWS, "segment_free": SEGMENT_SHRINKS, "segment_unmap": SEGMENT_SHRINKS, "oom": OOM,
    "free": FREE_COMPLETED,  # as torch 1.13 called it
}  # fmt: skip
# Files of native frames: torch mixes them with Python's where it was asked for stacks="all".
_NATIVE_SUFFIXES = (".cpp", ".cc", ".c", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".so", ".S", ".inl")


class AllocatorTrace:
    """What one device's list of events tells: `events` has those in which memory changes hands."""

    def __init__(self) -> None:
        self.events = Events()
        self.paths = TracePaths(EventStacks())
        self.has_times = False
        self._time_us = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """The next event. Without times events are a microsecond apart.

        Raises KeyError, TypeError, ValueError, OverflowError, AttributeError for what is none.
        """
        action = ACTIONS.get(event["action"], OTHER)
        if action == OTHER:
            return  # "snapshot", "annotate", and what later versions bring: nothing changes hands
        size, time_us = event["size"], event.get("time_us")
        if type(size) is not int or size < 0:
            raise ValueError(f"{size!r} is no size")
        if time_us is None:
            self._time_us += 1
        else:
            self._time_us, self.has_times = time_us, True
        events = self.events
        events.action.append(action)
        events.address.append(0 if action == OOM else event["addr"])
        events.bytes.append(size)
        events.time_us.append(self._time_us)
        events.stack.append(self.paths.of_event(event) if action in (ALLOC, OOM) else NO_STACK)


class TracePaths:
    """Call paths of torch's frames, innermost first there. One dict of a frame serves all stacks it is in, so it is looked at once."""

    def __init__(self, stacks: EventStacks) -> None:
        self.stacks = stacks
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._frames: dict[int, tuple[Frame, Mapping[str, Any]]] = {}  # with the dict, so that its id stays its own

    def of_event(self, event: Mapping[str, Any]) -> int:
        """The stack of an event."""
        frames = event.get("frames")
        label = label_of(event)
        if not frames and not label:
            return NO_STACK
        return self.number(frames or (), event.get("stream", 0), label)

    def of_block(self, block: Mapping[str, Any], stream: int) -> int:
        """The stack that a block in use was allocated by."""
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
    """A native frame has no file here, as in every other stack of hiwater's: its place is part of its name."""
    name, file, line = str(frame["name"]), str(frame["filename"]), frame["line"]
    if type(line) is not int:
        raise TypeError(f"{line!r} is no line")
    if file in ("", "??") or file.endswith(_NATIVE_SUFFIXES):
        return Frame(name or "[native]", "", 0)
    return Frame(name, file, line if 0 <= line < 1 << 32 else 0)


def label_of(event: Mapping[str, Any]) -> str:
    """What a user said of an allocation: a category, or metadata set with `_set_memory_metadata`."""
    if not event.get("category") and not event.get("user_metadata"):
        return ""
    said = [str(event[name]) for name in ("category", "user_metadata") if event.get(name)]
    return f"[{', '.join(said)}]"
