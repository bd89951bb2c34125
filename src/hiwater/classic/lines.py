"""Memory by line, in the terms that memory_profiler's reports use: a trace function in Python.

One trace function serves every profiler of a thread: a table of code objects says whose lines they are. A profiler that is
enabled and disabled in any order with others, as coroutines do, never puts back a trace function that is no longer wanted.
Each line's figures are its own: a line is charged with the change from its beginning to its end, whoever else is profiled.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from dataclasses import dataclass, field

from hiwater.sampling.procfs import ProcessMemory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any


@dataclass(slots=True)
class LineFigures:
    """One line: bytes are of the meter; `kept_bytes` sums the changes from the line's start to its end over all `calls`.

    `resident_start_bytes` is the value at its first start, `resident_end_bytes` the highest at any of its ends.
    """

    line: int
    calls: int = 0
    kept_bytes: int = 0
    peak_bytes: int = 0
    resident_start_bytes: int = 0
    resident_end_bytes: int = 0


@dataclass(slots=True)
class FunctionLines:
    """One function with the lines that ran. The line it begins at holds what was used when it was first called."""

    file: str
    name: str
    first_line: int
    code: CodeType
    lines: dict[int, LineFigures] = field(default_factory=dict)


def resident_meter() -> Callable[[], int]:
    """A reading of this process's resident bytes, a few µs each; right in a forked child, too."""
    memory, owner = ProcessMemory(os.getpid()), os.getpid()

    def read() -> int:
        nonlocal memory, owner
        if owner != os.getpid():
            memory, owner = ProcessMemory(os.getpid()), os.getpid()
        return memory.resident_bytes() or 0

    return read


class LineProfiler:
    """Measures the lines of chosen functions, in the threads where it is enabled."""

    def __init__(
        self, functions: tuple[Callable[..., Any], ...] = (), *, meter: Callable[[], int] | None = None
    ) -> None:
        self.read = meter or resident_meter()
        self._functions: dict[CodeType, FunctionLines] = {}
        self._of_code: dict[CodeType, FunctionLines] = {}
        for function in functions:
            self.add_function(function)

    def add_function(self, function: Callable[..., Any]) -> None:
        """Measure this function, with the functions, lambdas and classes written inside it. AttributeError without code."""
        self.add_code(inspect.unwrap(function).__code__)

    def add_code(self, code: CodeType) -> None:
        if code in self._functions:
            return
        lines = FunctionLines(code.co_filename, code.co_name, code.co_firstlineno, code)
        self._functions[code] = lines
        for inner in _with_inner(code):
            self._of_code[inner] = lines

    def enable(self) -> None:
        """Measure from now on in this thread; counts, so that each `enable` needs a `disable`."""
        _thread_state().enable(self)

    def disable(self) -> None:
        _thread_state().disable(self)

    def measures(self, code: CodeType) -> bool:
        return code in self._of_code

    def results(self) -> list[FunctionLines]:
        """The functions in the order they were added."""
        return list(self._functions.values())

    # Told by the trace function

    def begins(self, code: CodeType, now: int) -> None:
        """A call of a measured function, not the continuation of a generator."""
        lines = self._of_code[code]
        if lines.code is not code:
            return  # a lambda or comprehension: its lines are the function's
        figures = lines.lines.get(lines.first_line)
        if figures is None:
            figures = lines.lines[lines.first_line] = LineFigures(lines.first_line, 0, now, now, 0, now)
        figures.calls += 1

    def line_ended(self, code: CodeType, line: int, start: int, now: int, *, is_whole: bool) -> None:
        lines = self._of_code[code].lines
        figures = lines.get(line)
        if figures is None:
            figures = lines[line] = LineFigures(line, 0, 0, 0, start, now)
        figures.calls += is_whole
        figures.kept_bytes += now - start
        figures.peak_bytes = max(figures.peak_bytes, start, now)
        figures.resident_end_bytes = max(figures.resident_end_bytes, now)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _with_inner(constant)


class _ThreadState(threading.local):
    """The profilers enabled in one thread, and the trace function that was there before them."""

    def __init__(self) -> None:
        self.enabled: dict[LineProfiler, int] = {}
        self.frames: list[_FrameLines] = []  # the measured frames that run, outermost first
        self.before: Any = None

    def enable(self, profiler: LineProfiler) -> None:
        if not self.enabled:
            self.before = sys.gettrace()
        self.enabled[profiler] = self.enabled.get(profiler, 0) + 1
        if sys.gettrace() is not self.trace:
            sys.settrace(self.trace)

    def disable(self, profiler: LineProfiler) -> None:
        count = self.enabled.get(profiler, 0) - 1
        if count > 0:
            self.enabled[profiler] = count
            return
        self.enabled.pop(profiler, None)
        if not self.enabled:
            if sys.gettrace() == self.trace:
                sys.settrace(self.before)
            self.before = None
            self.frames.clear()

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The trace function of calls. One that was there before goes on with every frame that is not measured."""
        if event != "call":
            return None
        code = frame.f_code
        profilers = [profiler for profiler in self.enabled if profiler.measures(code)]
        if not profilers:
            return self.before(frame, event, arg) if self.before is not None else None
        return _FrameLines(profilers, code, is_start=_is_start(frame)).trace


class _FrameLines:
    """The line that one frame is at, for the profilers that measure it."""

    __slots__ = ("caller", "code", "first", "line", "profilers", "start")

    def __init__(self, profilers: list[LineProfiler], code: CodeType, *, is_start: bool) -> None:
        self.profilers = profilers
        self.code = code
        self.line: int | None = None
        self.start = [profiler.read() for profiler in profilers]
        self.first = self.start
        # The call of the same function that this one is inside of. What a recursive call adds is charged to its own lines.
        running = _states.frames
        self.caller = next((frame for frame in reversed(running) if frame.code is code), None)
        running.append(self)
        if is_start:
            for profiler, now in zip(profilers, self.start, strict=True):
                profiler.begins(code, now)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event in {"line", "return"}:
            now = [profiler.read() for profiler in self.profilers]
            if self.line is not None:
                for profiler, start, end in zip(self.profilers, self.start, now, strict=True):
                    profiler.line_ended(self.code, self.line, start, end, is_whole=True)
            self.line = frame.f_lineno if event == "line" else None
            self.start = now
            if event == "return":
                self._leave(now)
        return self.trace

    def _leave(self, now: list[int]) -> None:
        running = _states.frames
        while running and running.pop() is not self:
            pass  # frames that were left without an event, as when a debugger took the trace function away
        if self.caller is not None and len(self.caller.start) == len(now):
            changes = [end - begin for begin, end in zip(self.first, now, strict=True)]
            self.caller.start = [start + change for start, change in zip(self.caller.start, changes, strict=True)]


def _is_start(frame: FrameType) -> bool:
    """Whether a "call" event begins the function; else it continues a generator or coroutine after a yield or await."""
    if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return True
    # The argument of the RESUME instruction says why: its two low bits are 0 at the start (dis, RESUME).
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0 if frame.f_lasti >= 0 else True


_states = _ThreadState()


def _thread_state() -> _ThreadState:
    return _states


def trace_for(profiler: LineProfiler, frame: FrameType, event: str, _: Any) -> Any:
    """A trace function's answer to `event` that measures for `profiler` alone."""
    if event != "call" or not profiler.measures(frame.f_code):
        return None
    return _FrameLines([profiler], frame.f_code, is_start=_is_start(frame)).trace
