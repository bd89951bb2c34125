"""Snapshots read as they come from the file: an event is taken in as soon as its dict is complete, and is forgotten.

The result is the snapshot that the unpickler would give, but for this:

    the list of "device_traces"   its lists are `Trace`s, which make a few numbers of an event as soon as it is there
    a list of "frames"            a `FrameList`, one for all lists that are alike; so are flat dicts in lists (frames), texts and tuples of numbers
    the memo                      has nothing of an event but what it shares with others: 8 bytes for each object

That is right as long as nothing comes back to what was let go, and nothing changes that was used: `Unusual` says when it does.
"""

from __future__ import annotations

import re
from typing import Any, BinaryIO

from hiwater.device_history.event_runs import GET, KNOWN_FRAMES, EventRuns
from hiwater.device_history.pickle_machine import FORGOTTEN, PickleMachine, Unusual
from hiwater.device_history.trace import AllocatorTrace, FrameList

_LARGEST_BATCH = 1000  # elements that picklers add to a list at once: after fewer it is complete
_KNOWN_FRAMES = re.compile(KNOWN_FRAMES, re.DOTALL)
_GET = re.compile(GET, re.DOTALL)
_BEFORE_FRAMES = 2  # EMPTY_LIST, MEMOIZE


def read(stream: BinaryIO, length: int) -> object:
    """The snapshot in a pickle of `length` bytes, with an `AllocatorTrace` for each list of events. Raises Unusual, OSError."""
    machine = SnapshotMachine(stream, length)
    data = machine.run()
    traces = machine.traces
    if traces is None:
        return data
    is_in_place = isinstance(data, dict) and data.get("device_traces") is traces
    if not is_in_place:
        raise Unusual("events are elsewhere than in device_traces")
    if not all(type(trace) is AllocatorTrace for trace in traces) or len(set(traces)) != machine.trace_count:
        raise Unusual("device_traces is more than lists, each once")
    return data


class _Traces(list[Any]):
    """The list of "device_traces"."""


class SnapshotMachine(PickleMachine):
    """Makes a snapshot. `trace_count` is how many lists of events were begun."""

    def __init__(self, stream: BinaryIO, length: int) -> None:
        super().__init__(stream, length)
        self.traces: _Traces | None = None
        self.trace_count = 0
        self._texts: dict[str, str] = {}
        self._numbers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._flat: dict[tuple[tuple[Any, Any], ...], dict[Any, Any]] = {}
        self._frames: dict[tuple[int, ...], FrameList] = {}  # by the identities of their dicts
        self._frames_as_written: dict[bytes, FrameList] = {}
        self._newest_dict = self._newest_list = -1  # numbers in the memo
        self._runs = EventRuns()

    def new_dict(self) -> None:
        trace = self._trace_of_batch() if not self.stack else None
        if trace is None or not self._runs.take(self, trace):
            self.push({}, 1)

    def new_list(self) -> None:
        before = self.stack[-1] if self.stack else None
        if type(before) is _Traces or (self.above and self.above[-1] and type(self.above[-1][-1]) is _Traces):
            self.trace_count += 1
            self.push(AllocatorTrace(), 1)
        elif before == "device_traces" and self._is_key_of_the_whole():
            self._begin_traces()
        elif not (before == "frames" and self._is_key() and self._take_known_frames()):
            self.push([], 1)

    def remember(self, value: Any) -> None:
        kind, number = type(value), len(self.memo)
        if kind is AllocatorTrace or kind is _Traces or (kind is dict and self._will_be_let_go()):
            value = FORGOTTEN
        elif kind is dict:
            self._newest_dict = number
        elif kind is list:
            self._newest_list = number
        elif kind is tuple and all(type(item) is int for item in value):
            value = self.stack[-1] = self.numbers(value)
        self.memo.append(value)

    def text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def filled(self, target: dict[Any, Any]) -> None:
        trace = self._trace_of_batch() if len(self.stack) == 1 else None
        if trace is not None:
            trace.add(self.stack.pop())
        elif self._is_in_frames():
            self._replace(self._newest_dict, self._one_of_alike(target))

    def append(self, target: Any, item: Any) -> None:
        if type(target) is AllocatorTrace:
            target.add(item)
        else:
            super().append(target, item)

    def extend(self, target: Any, items: list[Any]) -> None:
        if type(target) is _Traces:
            target.extend(items)
        elif type(target) is not AllocatorTrace:
            super().extend(target, items)
            whole = len(items) == len(target) < _LARGEST_BATCH
            if whole and len(self.stack) > 1 and self.stack[-2] == "frames":
                self._replace(self._newest_list, self._alike(FrameList(target)))
        elif items:
            raise Unusual("a list of events holds more than new dicts")

    # Where the machine is

    def _trace_of_batch(self) -> AllocatorTrace | None:
        """The list of events that the objects since the last mark will be added to."""
        owner = self.above[-1][-1] if self.above and self.above[-1] else None
        return owner if type(owner) is AllocatorTrace else None

    def _is_key(self) -> bool:
        """Whether the top of the stack is the key of a pair."""
        if len(self.stack) > 1 and type(self.stack[-2]) is dict:
            return True
        return len(self.stack) % 2 == 1 and bool(self.above and self.above[-1]) and type(self.above[-1][-1]) is dict

    def _is_key_of_the_whole(self) -> bool:
        """Whether it is one of the outermost dict."""
        of_whole = len(self.above) == len(self.above[0]) == 1 if self.above else len(self.stack) == 2
        return of_whole and self._is_key()

    def _is_in_frames(self) -> bool:
        """Whether the top of the stack is an element of a list of frames."""
        stack, below = self.stack, self.above[-1] if self.above else []
        if len(stack) > 2 and type(stack[-2]) is list and stack[-3] == "frames":
            return True
        return len(below) > 1 and type(below[-1]) is list and bool(below[-2] == "frames")

    def _will_be_let_go(self) -> bool:
        """Whether the dict at the top is an event, or the whole."""
        if len(self.stack) > 1:
            return type(self.stack[-2]) is AllocatorTrace
        return not self.above or self._trace_of_batch() is not None

    # Each once

    def _begin_traces(self) -> None:
        if self.traces is not None:
            raise Unusual("device_traces twice")
        self.traces = _Traces()
        self.push(self.traces, 1)

    def _replace(self, number: int, value: Any) -> None:
        """Put `value` in the place of the object at the top, and in the memo if that is the object with this number."""
        if number >= 0 and self.memo[number] is self.stack[-1]:
            self.memo[number] = value
        self.stack[-1] = value

    def _one_of_alike(self, frame: dict[Any, Any]) -> dict[Any, Any]:
        if all(type(value) in (str, int) for value in frame.values()):
            return self._flat.setdefault(tuple(frame.items()), frame)
        return frame

    def numbers(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The one tuple for all that are alike."""
        return self._numbers.setdefault(numbers, numbers)

    def _alike(self, frames: FrameList) -> FrameList:
        return self._frames.setdefault(tuple(map(id, frames)), frames)

    def _take_known_frames(self) -> bool:
        """A whole list of frames that are known already. False for any other."""
        found = _KNOWN_FRAMES.match(self.buffer, self.place, self.frame_end)
        if found is None or found.end() >= self.enough:
            return False
        frames = self.frames_as_written(found.group())
        self.memo.append(frames)
        self.push(frames, found.end() - self.place)
        return True

    def frames_as_written(self, written: bytes) -> FrameList:
        """The frames of a list that is empty, or that these instructions fill with what the memo has."""
        known = self._frames_as_written.get(written)
        if known is None:
            frames = (self.fetch(int.from_bytes(get[1:], "little")) for get in _GET.findall(written, _BEFORE_FRAMES))
            known = self._frames_as_written[written] = self._alike(FrameList(frames))
        return known
