"""What became of one device's memory: events in time, and the blocks that were there at the end, as plain arrays.

Every source of a history (a torch snapshot, CuPy's hook) comes to this before it is replayed. Addresses tell blocks apart; a stack is a
number into `Stacks`. Sizes are bytes as the program asked for them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hiwater.capture.paths import Frame

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_GROWS, SEGMENT_SHRINKS, OOM, OTHER = range(7)
NO_STACK, BEFORE_STACK = 0, -1  # of blocks allocated without one, or before the history began


class EventStacks:
    """Call paths, root first, each once: number 0 is none."""

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
    """Blocks in use when the history ended: address, bytes asked for, stack, and of how many blocks an entry is the sum."""

    address: array[int] = field(default_factory=lambda: array("Q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("q"))
    count: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Events:
    """Parallel arrays, in the order in which things happened."""

    action: array[int] = field(default_factory=lambda: array("b"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    time_us: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.action)


@dataclass(slots=True)
class DeviceHistory:
    """All that one source tells of one device. `notes` are limits of it, in words; `reserved_bytes` is what was reserved at the end, None where
    nothing is known of segments. Without `has_times` the times of events only give their order."""

    device: str
    stacks: EventStacks
    events: Events
    live: Blocks
    reserved_bytes: int | None
    has_times: bool = True
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
