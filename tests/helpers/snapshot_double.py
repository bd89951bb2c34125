"""One device of the double's allocator (`cuda_double`) by itself, without torch, for tests of what reads its histories.

Stacks are given with each allocation, and times are 7 µs apart, so that figures can be told in advance.
"""

from cuda_double.card import Card
from cuda_double.device_allocator import DeviceAllocator
from cuda_double.history import ALLOC


class Refused(Exception):
    """Stands for torch.OutOfMemoryError."""


class Allocator:
    """A device, and what is true of it: `live` has (bytes asked for, names of the stack's frames) by address, until
    the memory can be used again."""

    def __init__(self, device=0, capacity=1 << 40, max_entries=None, recording=True):
        self.device = device
        self._allocator = DeviceAllocator(Card(device, capacity), Refused)
        self._most = max_entries or 1 << 40
        self._names = {}
        self._more = {}  # what an event has besides, by its time
        self.history = self._allocator.history
        self.history.use_clock(1_700_000_000_000_000, 7)
        self.recording = recording

    @property
    def recording(self):
        return self.history.enabled

    @recording.setter
    def recording(self, on):
        self.history.record(on, ALLOC, self._most, False, ())

    def alloc(self, size, frames=(), stream=0, **more):
        self.history.frames = list(frames)
        address = self._allocator.malloc(size, stream)
        self._names[address] = size, tuple(frame["name"] for frame in frames)
        if more:
            self._more[self.history.shown()[-1]["time_us"]] = more
        return address

    def free(self, address, *, waits=False):
        """`waits`: another stream uses the block, until `synchronise`."""
        if waits:
            self._allocator.record_stream(address, stream=99)
        self._allocator.free(address)

    def synchronise(self, after_each=lambda: None):
        """All streams are done, and what waited for them is freed, one after the other, as the next request or
        `empty_cache` does first."""
        self._allocator.finish()
        waiting = self._allocator._events
        for each in waiting:
            self._allocator._events = [each]
            self._allocator._process_events(None)
            after_each()

    def empty_cache(self):
        self._allocator.empty_cache()

    def snapshot(self):
        segments, _ = self._allocator.snapshot(traces=False)
        return {
            "segments": segments,
            "device_traces": [[] for _ in range(self.device)] + [self.trace],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": [],
        }

    @property
    def trace(self):
        """The events that the ring holds."""
        return [event | self._more.get(event["time_us"], {}) for event in self.history.shown()]

    @property
    def time_us(self):
        """When the last event was."""
        return self.history.clock_us

    @time_us.setter
    def time_us(self, value):
        self.history.use_clock(value, 7)

    @property
    def events_in_all(self):
        return self.history.events_in_all

    @property
    def live(self):
        active = self._allocator.active
        return {address: names for address, names in self._names.items() if active.get(address) == names[0]}

    @property
    def waiting(self):
        """Blocks that are freed and wait for a stream."""
        return set(self.live) - set(self._allocator.live)

    @property
    def reserved(self):
        return self._allocator.now("reserved_bytes")


def frame(name, line=1, filename="/work/train.py"):
    """A frame as torch shows it; stacks are innermost first there."""
    return {"filename": filename, "line": line, "name": name}
