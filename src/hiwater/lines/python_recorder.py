"""The line recorder in Python. It measures only resident memory; native/lines/line_recorder.h explains its terms.

A meter is a Python function that may do anything, so an event calls it before it reads any state. An address identifies
a frame, so that no frame is kept alive.
"""

from __future__ import annotations

import sys
import threading

from hiwater import meters
from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    Listener = Callable[[int, int, CodeType, int], object]
    Row = tuple[int, int, int, int, int, int, int, int, int]


class _Figure:
    """The figures of one line in bytes of the meter."""

    __slots__ = ("calls", "change", "end", "highest", "start")

    def __init__(self) -> None:
        self.calls = self.change = self.start = self.end = self.highest = 0


class _RecorderState:
    """The state that the groups of one recorder share."""

    __slots__ = ("active", "bytes", "epoch", "listener", "meter", "only", "recursion_apart")

    def __init__(self, meter: Callable[[], int] | None, recursion_apart: bool, listener: Listener | None) -> None:
        self.meter = meter
        self.listener = listener
        self.bytes = 0  # the last value of the meter
        self.recursion_apart = recursion_apart
        self.active = False
        self.only: int | None = None  # the thread that is measured; None: all of them
        self.epoch = 0

    def is_wanted(self) -> bool:
        return self.active and (self.only is None or self.only == threading.get_ident())

    def read(self) -> None:
        if self.meter is None:
            return
        try:
            self.bytes = self.meter()
        except Exception as error:  # noqa: BLE001 - the last value stays; KeyboardInterrupt is for the program
            _complain(error, self.meter)

    def notify(self, what: int, frame: int, code: CodeType, line: int) -> None:
        if self.listener is None:
            return
        try:
            self.listener(what, frame, code, line)
        except Exception as error:  # noqa: BLE001 - as above
            _complain(error, self.listener)


def _complain(error: Exception, meter: object) -> None:
    """Report an exception that cannot be raised, as the interpreter does. Its default hook accepts no arguments made
    in Python."""
    hook: Any = sys.unraisablehook
    if hook is sys.__unraisablehook__:
        import traceback

        traceback.print_exception(error)
        return
    from types import SimpleNamespace

    traceback_of = error.__traceback__
    hook(SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=traceback_of, err_msg=None, object=meter))


class _FunctionGroup:
    """The figures of a function and the code nested in it."""

    __slots__ = ("begun", "figures", "first_bytes", "lines", "state")

    def __init__(self, state: _RecorderState, lines: range) -> None:
        self.state = state
        self.lines = lines
        self.clear()

    def clear(self) -> None:
        self.figures: dict[int, _Figure] = {}
        self.begun = self.first_bytes = 0

    def begin(self) -> None:
        self.begun += 1
        if self.begun == 1:
            self.first_bytes = self.state.bytes

    def figure(self, line: int) -> _Figure | None:
        if line not in self.lines:
            return None
        return self.figures.get(line) or self.figures.setdefault(line, _Figure())


class _Entry:
    """A running activation of watched code, for one of the groups that watch it."""

    __slots__ = ("code", "counts", "entered", "epoch", "frame", "group", "line", "nested", "start")

    def __init__(self, frame: int, code: int, group: _FunctionGroup, nested: bool) -> None:
        self.frame = frame
        self.code = code
        self.group = group
        self.nested = nested
        self.line: _Figure | None = None  # None: no segment is open
        self.counts = False  # whether the segment's change is the line's
        self.epoch = group.state.epoch
        self.entered = self.start = group.state.bytes

    def is_current(self) -> bool:
        return self.epoch == self.group.state.epoch


class _ThreadState(threading.local):
    """The entries of one thread, outermost first, and how often it has each line open."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.open: dict[_Figure, int] = {}
        self.generation = _generation
        # Held during an event; like every lock here one whose end cannot fail in deep recursion.
        self.at_work = threading.Lock()

    def of_frame(self, frame: int, code: int) -> list[_Entry]:
        """The frame's entries at the top of the stack, after the removal of those above, whose end was not seen.
        Empty for a frame that was not seen before."""
        if self.generation != _generation:
            self.drop_inactive()
        entries = self.entries
        if not entries or entries[-1].frame != frame:
            if not any(entry.frame == frame for entry in entries):
                return []
            while entries[-1].frame != frame:
                self.pop()
        first = len(entries) - 1
        while first > 0 and entries[first - 1].frame == frame:
            first -= 1
        found = entries[first:]
        if found[-1].code == code:
            return found
        for _ in found:
            self.pop()  # the address was used again
        return []

    def push(self, frame: int, code: int) -> list[_Entry]:
        watches = _watched.get(code, ())
        new = [_Entry(frame, code, group, nested) for group, nested in watches if group.state.is_wanted()]
        self.entries += new
        return new

    def open_segment(self, entry: _Entry, line: int, *, is_call: bool) -> None:
        group = entry.group
        figure = group.figure(line) if group.state.active else None
        if figure is None:
            return
        count = self.open.get(figure, 0)
        self.open[figure] = count + 1
        entry.counts = count == 0 or (group.state.recursion_apart and not entry.nested)
        if is_call and (count == 0 or not entry.nested):
            figure.calls += 1
        entry.line, entry.epoch, entry.start = figure, group.state.epoch, group.state.bytes

    def close_segment(self, entry: _Entry) -> None:
        figure, entry.line = entry.line, None
        if figure is None:
            return
        if self.open[figure] == 1:
            del self.open[figure]
        else:
            self.open[figure] -= 1
        if not entry.is_current():
            return
        now = entry.group.state.bytes
        figure.start, figure.end, figure.highest = entry.start, now, max(figure.highest, now)
        if entry.counts:
            figure.change += now - entry.start

    def pop(self) -> None:
        entry = self.entries[-1]
        self.close_segment(entry)
        self.entries.pop()
        state = entry.group.state
        if not state.recursion_apart or entry.nested or not entry.is_current():
            return
        for other in reversed(self.entries):  # leave the changes of a recursive call out of its caller
            if other.group is entry.group and other.code == entry.code and other.line is not None:
                other.start += state.bytes - entry.entered
                return

    def drop_inactive(self) -> None:
        self.generation = _generation
        for entry in self.entries:
            if not entry.group.state.active:
                self.close_segment(entry)
        self.entries = [entry for entry in self.entries if entry.group.state.active]


_generation = 0  # moves when something is switched off
_thread = _ThreadState()
_watched: dict[int, list[tuple[_FunctionGroup, bool]]] = {}  # by the code object's address
_lock = threading.RLock()  # all threads use the figures; reentrant, because a finaliser may run meanwhile


def _resident_meter() -> Callable[[], int]:
    """Raises MeterUnavailable if resident memory cannot be read."""
    meter = meters.create("resident")
    try:
        meter.now()
    except (OSError, ValueError, IndexError) as error:
        raise MeterUnavailable(
            f"resident memory cannot be read ({error})", "lines need Linux with /proc mounted"
        ) from error
    return meter.now


class LineRecorder:
    """Has the methods of the native recorder."""

    def __init__(
        self,
        *,
        resident: bool,
        meter: Callable[[], int] | None = None,
        recursion_apart: bool = False,
        listener: Listener | None = None,
    ) -> None:
        self._groups: list[_FunctionGroup] = []
        self._codes: list[int] = []
        self._state = _RecorderState((meter or _resident_meter()) if resident else None, recursion_apart, listener)

    def add_group(self, first_line: int, last_line: int, label: bytes = b"") -> int:  # noqa: ARG002 - the engine's
        self._groups.append(_FunctionGroup(self._state, range(first_line, last_line + 1)))
        return len(self._groups) - 1

    def watch(self, code: CodeType, group: int, *, nested: bool = False) -> None:
        with _lock:
            _watched.setdefault(id(code), []).append((self._groups[group], nested))
            self._codes.append(id(code))

    def set_active(self, active: bool, *, here: bool = False) -> None:
        global _generation  # noqa: PLW0603 - every thread compares with it
        state = self._state
        if active == state.active:
            return
        if not active:
            state.read()
        with _lock:
            state.active = active
            state.only = threading.get_ident() if active and here else None
            if not active:
                _generation += 1
                if not _thread.at_work.locked():  # else a finaliser runs during an event: the next event does it
                    _thread.drop_inactive()
                state.epoch += 1

    def clear(self) -> None:
        with _lock:
            self._state.epoch += 1
            for group in self._groups:
                group.clear()

    def figures(self, group: int) -> list[Row]:
        with _lock:
            found = sorted(self._groups[group].figures.items())
            return [(line, f.calls, 0, 0, 0, f.change, f.start, f.end, f.highest) for line, f in found]

    def begun(self, group: int) -> tuple[int, int]:
        with _lock:
            return self._groups[group].begun, self._groups[group].first_bytes

    def __del__(self) -> None:
        groups = {id(group) for group in self._groups}
        with _lock:
            for code in self._codes:
                left = [watch for watch in _watched.get(code, ()) if id(watch[0]) not in groups]
                if left:
                    _watched[code] = left
                else:
                    _watched.pop(code, None)


def is_watched(code: CodeType) -> bool:
    return id(code) in _watched


def _notify(what: int, frame: FrameType, code: CodeType, line: int = 0) -> None:
    for state in dict.fromkeys([group.state for group, _ in _watched.get(id(code), ())]):
        if state.is_wanted():
            state.notify(what, id(frame), code, line)
            state.read()


def lines_on_line(frame: FrameType, code: CodeType, line: int) -> None:
    """A line of watched code begins. A frame that was not seen before is added: it may have begun before it was
    watched."""
    if id(code) not in _watched:
        return
    _notify(0, frame, code, line)
    with _lock, _thread.at_work:
        seen = _thread.of_frame(id(frame), id(code))
        entries = seen or _thread.push(id(frame), id(code))
        for entry in reversed(entries):
            _thread.close_segment(entry)
        for entry in entries:
            _thread.open_segment(entry, line, is_call=True)
            if not seen and not entry.nested:
                entry.group.begin()


def lines_on_resume(frame: FrameType, code: CodeType, line: int) -> None:
    """A generator or coroutine continues in the middle of a line."""
    if id(code) not in _watched:
        return
    _notify(1, frame, code, line)
    with _lock, _thread.at_work:
        for _ in _thread.of_frame(id(frame), id(code)):
            _thread.pop()
        for entry in _thread.push(id(frame), id(code)):
            _thread.open_segment(entry, line, is_call=False)


def lines_on_exit(frame: FrameType, code: CodeType, suspends: bool) -> None:
    """The frame ends or is suspended."""
    if id(code) not in _watched:
        return
    _notify(3 if suspends else 2, frame, code)
    with _lock, _thread.at_work:
        for _ in _thread.of_frame(id(frame), id(code)):
            _thread.pop()
