"""Figures of lines from a device's statistics: the events come from the line recorder, the statistics from a source
that reads and resets peaks.

A device's memory belongs to all threads, so what any of them does while a line is open is in that line: the threads of
autograd, which run no Python lines, are in the line that called `backward()`. Peaks compose by their maximum: a reading
is told to the innermost open line of each thread, and a line that closes hands its peaks to the one around it. So every
line's peak is exact, whatever runs inside.
"""

from __future__ import annotations

import threading
import weakref

from hiwater._os import portable
from hiwater.meters.devices.statistics import is_total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType
    from typing import Protocol

    class Source(Protocol):
        """Where the statistics of one device come from. `read` first tells `DeviceRecorder.take_peaks` the peaks since
        the last reading, whoever made it, then returns the statistics as they are now: the same object as long as
        nothing changes, and an empty one before the device is in use.
        """

        @property
        def name(self) -> str: ...

        def read(self) -> Mapping[str, int]: ...


LINE, RESUME, EXIT, SUSPEND = range(4)
"""The kinds of events of a line recorder."""


class DeviceFigure:
    """The figures of one line by the source's names. `peaks` and `above` use the name without `.peak`, `ends` and
    `changes` the whole name."""

    __slots__ = ("above", "changes", "devices", "ends", "hits", "idle", "intact", "peaks")

    def __init__(self) -> None:
        self.hits = 0
        self.peaks: dict[str, int] = {}  # the highest of any call
        self.above: dict[str, int] = {}  # the highest of any call above the figure at that call's start
        self.ends: dict[str, int] = {}  # the highest at the end of any call
        self.changes: dict[str, int] = {}  # ends minus starts, all calls together
        self.devices: dict[Source, None] = {}  # in the order of their appearance
        self.intact = True  # whether nothing else reset the peaks meanwhile
        # What was counted last, of a call that did nothing.
        self.idle: tuple[Mapping[str, int], Mapping[str, int] | None] | None = None


class DeviceGroup:
    """The figures of a function and the code nested in it."""

    __slots__ = ("figures", "first_line", "lines")

    def __init__(self, first_line: int, last_line: int) -> None:
        self.first_line = first_line
        self.lines = range(first_line, last_line + 1)
        self.figures: dict[int, DeviceFigure] = {}

    def figure(self, line: int) -> DeviceFigure | None:
        """The figure of the line, made at first use; None for a line outside the function."""
        if line not in self.lines:
            return None
        return self.figures.get(line) or self.figures.setdefault(line, DeviceFigure())


class _Segment:
    """An interval in which a line of a frame is open."""

    __slots__ = ("counts", "epoch", "figure", "intact", "peaks", "source", "start", "taken")

    def __init__(
        self, figure: DeviceFigure, source: Source, start: Mapping[str, int], counts: bool, epoch: int
    ) -> None:
        self.figure = figure
        self.source = source
        self.start = start
        self.counts = counts  # whether the change is the line's: in recursion it is the outermost call's
        self.epoch = epoch
        self.peaks: dict[str, int] = {}
        self.taken: Mapping[str, int] | None = None
        self.intact = True

    def take(self, peaks: Mapping[str, int], intact: bool) -> None:
        self.intact &= intact
        if peaks is not self.taken:  # the same object as long as nothing changes
            raise_to(self.peaks, peaks)
            self.taken = peaks


class _Frame:
    """A running activation of watched code, for one of the groups that watch it."""

    __slots__ = ("before", "code", "frame", "group", "nested", "segment")

    def __init__(self, frame: int, code: int, group: DeviceGroup, nested: bool) -> None:
        self.frame = frame
        self.code = code
        self.group = group
        self.nested = nested
        self.segment: _Segment | None = None
        self.before: dict[str, int] = {}  # the changes of earlier segments of the same call of the line


class _Thread:
    """The frames of one thread, outermost first."""

    __slots__ = ("frames", "now", "open", "segments")

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.open: dict[DeviceFigure, int] = {}
        self.segments: dict[Source, list[_Segment]] = {}  # the open ones, innermost last
        self.now: dict[Source, Mapping[str, int]] = {}  # what this event has read

    def entries_of(self, frame: int) -> int:
        """The number of entries at the top that belong to this frame."""
        count = 0
        for entry in reversed(self.frames):
            if entry.frame != frame:
                break
            count += 1
        return count


class DeviceRecorder:
    """Keeps the figures of lines. `hear` is the listener of a line recorder. Any thread may call any method.

    It reads without a lock and counts under one.
    """

    def __init__(self, choose: Callable[[], Source]) -> None:
        """`choose` returns the device on which lines that begin now are measured."""
        self._choose = choose
        self._watched: dict[int, list[tuple[DeviceGroup, bool]]] = {}  # by the code object's address
        self._threads: dict[int, _Thread] = {}
        self._parked: dict[tuple[int, DeviceGroup], tuple[DeviceFigure, dict[str, int]]] = {}  # of suspended frames
        self._epoch = 0
        self._lock = threading.RLock()  # a finaliser may come in between
        _recorders.add(self)

    def watch(self, code: CodeType, group: DeviceGroup, *, nested: bool) -> None:
        """Count the lines of a code object in a group. The caller keeps the code object alive."""
        with self._lock:
            self._watched.setdefault(id(code), []).append((group, nested))

    def clear(self, groups: Iterable[DeviceGroup]) -> None:
        """Reset the figures of these groups to zero."""
        with self._lock:
            self._epoch += 1
            for group in groups:
                group.figures = {}

    def stop(self) -> None:
        """End the open lines of the calling thread. Those of other threads are not counted: their figures up to now
        are unknown."""
        mine = self._threads.get(threading.get_ident())
        if mine is not None:
            self._read(mine, with_target=False)
        with self._lock:
            while mine is not None and mine.frames:
                self._pop(mine)
            self._threads = {}
            self._parked = {}
            self._epoch += 1

    def hear(self, what: int, frame: int, code: CodeType, line: int) -> None:
        """An event of watched code; see `hiwater.lines.LineProfiler`."""
        thread = self._threads.setdefault(threading.get_ident(), _Thread())
        target = self._read(thread, with_target=what in (LINE, RESUME))
        with self._lock:
            if what == LINE:
                self._line(thread, frame, code, line, target)
            elif what == RESUME:
                self._resume(thread, frame, code, line, target)
            else:
                self._exit(thread, frame, id(code), suspends=what == SUSPEND)
            thread.now = {}
            if not thread.frames:
                self._threads.pop(threading.get_ident(), None)

    def take_peaks(self, source: Source, peaks: Mapping[str, int], intact: bool) -> None:
        """`peaks` are the highest values since the last call, by statistic; `intact` is false if something else
        reset the peaks meanwhile."""
        with self._lock:
            for thread in self._threads.values():
                segments = thread.segments.get(source)
                if segments:
                    segments[-1].take(peaks, intact)

    def _read(self, thread: _Thread, *, with_target: bool) -> Source | None:
        target = self._choose() if with_target else None
        wanted = dict.fromkeys(source for source, segments in thread.segments.items() if segments)
        if target is not None:
            wanted[target] = None
        thread.now = {source: source.read() for source in wanted}
        return target

    def _line(self, thread: _Thread, frame: int, code: CodeType, line: int, target: Source | None) -> None:
        entries = self._on_top(thread, frame, id(code))
        is_new = not entries
        if is_new:
            entries = self._push(thread, frame, id(code))
        for entry in reversed(entries):
            self._close(thread, entry)
        for entry in entries:
            entry.before = {}
            if is_new and not entry.nested and target is not None and line != code.co_firstlineno:
                self._begin(entry.group, code.co_firstlineno, target, thread.now[target])
            self._open(thread, entry, line, target, is_call=True)

    def _resume(self, thread: _Thread, frame: int, code: CodeType, line: int, target: Source | None) -> None:
        for _ in self._on_top(thread, frame, id(code)):
            self._pop(thread)
        for entry in self._push(thread, frame, id(code)):
            figure, before = self._parked.pop((frame, entry.group), (None, {}))
            entry.before = before if figure is not None and figure is entry.group.figures.get(line) else {}
            self._open(thread, entry, line, target, is_call=False)

    def _exit(self, thread: _Thread, frame: int, code: int, *, suspends: bool) -> None:
        for entry in reversed(self._on_top(thread, frame, code)):
            figure = entry.segment.figure if entry.segment is not None else None
            self._pop(thread)
            if suspends and figure is not None:
                self._parked[frame, entry.group] = (figure, entry.before)

    def _on_top(self, thread: _Thread, frame: int, code: int) -> list[_Frame]:
        """The frame's entries, after the removal of frames above it, whose end was not seen. Empty for a frame that
        was not seen before, or whose address was used again."""
        count = thread.entries_of(frame)
        if count == 0 and any(entry.frame == frame for entry in thread.frames):
            while count == 0:
                self._pop(thread)
                count = thread.entries_of(frame)
        found = thread.frames[len(thread.frames) - count :]
        if found and found[-1].code != code:
            for _ in found:
                self._pop(thread)
            return []
        return found

    def _push(self, thread: _Thread, frame: int, code: int) -> list[_Frame]:
        new = [_Frame(frame, code, group, nested) for group, nested in self._watched.get(code, ())]
        thread.frames += new
        return new

    def _pop(self, thread: _Thread) -> None:
        self._close(thread, thread.frames[-1])
        thread.frames.pop()

    def _begin(self, group: DeviceGroup, line: int, target: Source, now: Mapping[str, int]) -> None:
        """Count the state at the start of the function in the line of the `def`."""
        figure = group.figure(line)
        if figure is None:
            return
        figure.hits += 1
        figure.devices[target] = None
        for name, value in now.items():
            base, _, last = name.rpartition(".")
            if last == "current":
                raise_to(figure.peaks, {base: value})
            if not (last == "peak" or is_total(name)):
                raise_to(figure.ends, {name: value})

    def _open(self, thread: _Thread, entry: _Frame, line: int, target: Source | None, *, is_call: bool) -> None:
        figure = entry.group.figure(line)
        if figure is None or target is None:
            return
        count = thread.open.get(figure, 0)
        thread.open[figure] = count + 1
        if is_call and (count == 0 or not entry.nested):
            figure.hits += 1
        figure.devices[target] = None
        entry.segment = _Segment(figure, target, thread.now[target], count == 0, self._epoch)
        thread.segments.setdefault(target, []).append(entry.segment)

    def _close(self, thread: _Thread, entry: _Frame) -> None:
        segment, entry.segment = entry.segment, None
        if segment is None:
            return
        thread.open[segment.figure] -= 1
        if thread.open[segment.figure] == 0:
            del thread.open[segment.figure]
        around = thread.segments[segment.source]
        around.remove(segment)
        if around:
            around[-1].take(segment.peaks, segment.intact)
        if segment.epoch == self._epoch:
            _count(segment, thread.now[segment.source], entry.before)


def raise_to(highest: dict[str, int], values: Mapping[str, int]) -> None:
    """Make each value at least as high as that of the same name in `values`."""
    for name, value in values.items():
        if name not in highest or value > highest[name]:
            highest[name] = value


def _count(segment: _Segment, now: Mapping[str, int], before: dict[str, int]) -> None:
    figure, start = segment.figure, segment.start
    figure.intact &= segment.intact
    idle = start is now and not before
    if idle and figure.idle is not None and figure.idle[0] is now and figure.idle[1] is segment.taken:
        return  # nothing happened on the device, as the last time that the line ran
    figure.idle = (now, segment.taken) if idle else None
    levels = {name: value for name, value in now.items() if not (name.endswith(".peak") or is_total(name))}
    raise_to(figure.ends, levels)
    tops = dict(segment.peaks)
    for name, value in levels.items():
        if name.endswith(".current"):  # a device that came into use during the segment has no value at its start
            raise_to(tops, {name[: -len(".current")]: max(value, start.get(name, 0))})
    raise_to(figure.peaks, tops)
    if not segment.counts:
        return
    for base, top in tops.items():
        name = f"{base}.current"
        raise_to(figure.above, {base: before.get(name, 0) + top - start.get(name, 0)})
    for name, value in now.items():
        if not name.endswith(".peak"):
            change = value - start.get(name, 0)
            if change < 0 and is_total(name):  # something else reset it: the increment is unknown
                change = 0
            figure.changes[name] = figure.changes.get(name, 0) + change
            before[name] = before.get(name, 0) + change


_recorders: weakref.WeakSet[DeviceRecorder] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder._lock = threading.RLock()  # another thread of the parent's may have held it
        mine = recorder._threads.get(threading.get_ident())
        recorder._threads = {threading.get_ident(): mine} if mine is not None else {}


portable.at_fork(after_in_child=_after_fork)
