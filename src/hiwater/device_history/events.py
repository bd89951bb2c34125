"""The history of one device's memory as plain arrays: events in time, and the blocks in use at the end.

Every source of a history (a torch snapshot, JAX's profile) is converted to this form before it is replayed. An address
identifies a block. A stack is a number of `EventStacks`. Sizes are the bytes that the program requested.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hiwater.capture.paths import Frame

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_GROWS, SEGMENT_SHRINKS, OOM = range(6)
NO_STACK, BEFORE_STACK = 0, -1  # of blocks without a recorded stack; of those from before the history began


class EventStacks:
    """Call paths, root first. Each has one number; 0 means no path."""

    def __init__(self) -> None:
        self.paths: list[tuple[str, tuple[Frame, ...]]] = [("", ())]
        self._numbers: dict[tuple[str, tuple[Frame, ...]], int] = {("", ()): NO_STACK}

    def number(self, thread: str, frames: tuple[Frame, ...]) -> int:
        """The number of a path below a thread (for a device: its stream)."""
        key = (thread, frames)
        number = self._numbers.setdefault(key, len(self.paths))
        if number == len(self.paths):
            self.paths.append(key)
        return number


@dataclass(slots=True)
class Blocks:
    """Entries of blocks in use when the history ended: address, requested bytes, stack, and the number of blocks in
    the entry."""

    address: array[int] = field(default_factory=lambda: array("Q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("q"))
    count: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Events:
    """Events as parallel arrays, in the order of time."""

    action: array[int] = field(default_factory=lambda: array("b"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    time_us: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.action)


@dataclass(slots=True)
class DeviceHistory:
    """What one source knows of one device. `notes` are sentences about its limits. `reserved_bytes` is the value at
    the end, None if the segments are unknown. Without `has_times` the times of events give only their order."""

    device: str
    stacks: EventStacks
    events: Events
    live: Blocks
    reserved_bytes: int | None
    has_times: bool = True
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
