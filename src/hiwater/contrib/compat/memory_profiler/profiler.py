"""memory_profiler's `profile`, `LineProfiler`, `CodeMap` and `show_results`, with its output format."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
import sys
import threading
import warnings
import weakref

from hiwater import lines, meters
from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.contrib.compat.memory_profiler import session
from hiwater.lines import wrapping
from hiwater.lines.functions import codes_of
from hiwater.sampling import backends
from hiwater.sampling.usage import memory_usage
from hiwater.scopes import calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType
    from typing import Any, Self, TextIO

    Figures = tuple[float, float, int]

_ROW = "{0:>6} {1:>12} {2:>12}  {3:>10}   {4:<}"
_HEADER = _ROW.format("Line #", "Mem usage", "Increment", "Occurrences", "Line Contents")
SWITCH = "HIWATER_PROFILE"  # "0" turns the decorator off


class CodeMap(dict):  # type: ignore[type-arg]  # a dict of what memory_profiler's users expect in it
    """Code object → {line: (increment, highest, occurrences)}, in MiB."""

    def __init__(
        self, include_children: bool = False, backend: str | None = None, limit: Callable[[int], object] | None = None
    ) -> None:
        """`limit` is called with every reading, in bytes, in the frame of the measured line."""
        super().__init__()
        self.include_children = include_children
        self.backend = backends.choose_backend(backend)
        self.engine = lines.LineProfiler(
            heap=False, meter=_meter(self.backend, include_children, limit), recursion_apart=True
        )

    def add(self, code: CodeType, toplevel_code: CodeType | None = None) -> None:
        """Measure the lines of `code`, with those of the code nested in it."""
        if toplevel_code is None:
            self.setdefault(code, {})
            self.engine.add_function(code)

    def refresh(self) -> None:
        """Fill in the figures so far."""
        for measured in self.values():
            measured.clear()
        for code, function in zip(self.engine.codes, self.engine.results(), strict=True):
            measured = self[code]
            if function.calls:  # the first line of the function has the memory at its first call
                used = function.resident_first_bytes / BYTES_PER_MIB
                _add(measured, code.co_firstlineno, used, used, function.calls)
            for line in function.lines:
                _add(
                    measured, line.line, line.resident_bytes / BYTES_PER_MIB,
                    line.resident_highest_bytes / BYTES_PER_MIB, line.calls,
                )  # fmt: skip

    def items(self) -> Iterator[tuple[str, Iterator[tuple[int, Figures | None]]]]:  # type: ignore[override]
        """For each function its file and all its lines. Lines that never ran have None."""
        self.refresh()
        for code, measured in dict.items(self):
            if measured:
                yield code.co_filename, ((number, measured.get(number)) for number in _all_lines(code))


def _all_lines(code: CodeType) -> range:
    source = linecache.getlines(code.co_filename)
    try:
        block = inspect.getblock(source[code.co_firstlineno - 1 :])
    except (IndentationError, SyntaxError, IndexError):
        block = []
    last = max([number for _, _, number in code.co_lines() if number is not None], default=code.co_firstlineno)
    return range(code.co_firstlineno, max(code.co_firstlineno + len(block), last + 1))


def _add(measured: dict[int, Figures], line: int, increment: float, most: float, occurrences: int) -> None:
    before = measured.get(line)
    if before is not None:
        increment, most, occurrences = before[0] + increment, max(before[1], most), before[2] + occurrences
    measured[line] = (increment, most, occurrences)


def _meter(backend: str, include_children: bool, limit: Callable[[int], object] | None) -> Callable[[], int] | None:
    """The function that reads bytes at every line; None for resident memory without a limit, which the engine reads
    much faster."""
    if backend == backends.TRACEMALLOC:
        import tracemalloc

        if not tracemalloc.is_tracing():
            tracemalloc.start()
        read: Callable[[], int] = lambda: tracemalloc.get_traced_memory()[0]  # noqa: E731 - one of several
    elif include_children or backend not in {"psutil", "posix"}:
        usage = functools.partial(memory_usage, -1, include_children=include_children, backend=backend)
        read = lambda: int(usage()[0] * BYTES_PER_MIB)  # noqa: E731 - as above
    elif limit is not None:
        read = meters.create("resident").now
    else:
        return None
    if limit is None:
        return read

    def read_and_tell() -> int:
        used = read()
        limit(used)
        return used

    return read_and_tell


class CompatLineProfiler:
    """Measures functions line by line: as a decorator, a context manager, or by `runctx`."""

    def __init__(self, **kw: Any) -> None:
        """Takes `include_children`, `backend` and `max_mem`: MiB at which a debugger is entered."""
        self.include_children = bool(kw.get("include_children", False))
        self.backend = backends.choose_backend(kw.get("backend"))
        self.max_mem: float | None = kw.get("max_mem")
        # A weak reference: the line profiler lives until it is finalised.
        limit = _Limit(weakref.WeakMethod(self._enter_debugger), self.max_mem) if self.max_mem is not None else None
        self.code_map = CodeMap(self.include_children, self.backend, limit)
        self.functions: list[Callable[..., Any]] = []
        self.enable_count = 0

    def __call__(self, func: Callable[..., Any] | None = None, precision: int = 1) -> Any:
        if func is None:
            return functools.partial(self.__call__, precision=precision)
        self.add_function(func)
        return self.wrap_function(func)

    def add_function(self, func: Callable[..., Any]) -> None:
        """Measure this function. Warns if it has no Python code."""
        codes = codes_of(func)
        if not codes:
            warnings.warn(f"Could not extract a code object for the object {func!r}", stacklevel=2)
            return
        for code in codes:
            self.code_map.add(code)
        self.functions.append(func)

    def wrap_function(self, func: Callable[..., Any]) -> Any:
        """The function wrapped so that it is measured while it runs; a coroutine or generator until it ends."""
        return wrapped(func, self.enable_by_count, self.disable_by_count)

    def runctx(self, cmd: str, globals: dict[str, Any], locals: dict[str, Any]) -> Self:  # noqa: A002 - their names
        """Run a piece of code under measurement."""
        with self:
            exec(cmd, globals, locals)  # noqa: S102 - what was asked for
        return self

    def enable_by_count(self) -> None:
        if self.enable_count == 0:
            self.enable()
        self.enable_count += 1

    def disable_by_count(self) -> None:
        if self.enable_count > 0:
            self.enable_count -= 1
            if self.enable_count == 0:
                self.disable()

    def enable(self) -> None:
        self.code_map.engine.enable()

    def disable(self) -> None:
        self.code_map.engine.disable()

    def __enter__(self) -> Self:
        self.enable_by_count()
        return self

    def __exit__(self, *_: object) -> None:
        self.disable_by_count()

    def trace_memory_usage(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A trace function for `sys.settrace()` that measures this profiler's functions."""
        return self.code_map.engine.trace(frame, event, arg)

    def trace_max_mem(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The same as `trace_memory_usage`: the debugger is entered at the first measured line that reaches
        `max_mem` in any case."""
        return self.code_map.engine.trace(frame, event, arg)

    def _enter_debugger(self, used_bytes: int) -> None:
        """Stop in the measured frame."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.code_map.engine.watches(frame.f_code):
            frame = frame.f_back
        if frame is None or self.max_mem is None:
            return
        from pdb import Pdb

        sys.stdout.write(
            f"Current memory {used_bytes / BYTES_PER_MIB:.2f} MiB exceeded the maximum of {self.max_mem:.2f} MiB\n"
            "Stepping into the debugger \n"
        )
        debugger = Pdb(nosigint=True)
        self.disable()
        debugger.set_trace(frame)

    def print_stats(self, stream: TextIO | None = None, precision: int = 1) -> None:
        show_results(self, stream, precision)


class _Limit:
    """Calls a method when a reading reaches a number of MiB, as long as its object lives."""

    def __init__(self, reached: weakref.WeakMethod[Callable[[int], object]], mib: float) -> None:
        self._reached = reached
        self._mib = mib
        self._is_telling = False

    def __call__(self, used_bytes: int) -> None:
        reached = self._reached()
        if self._is_telling or reached is None or used_bytes < self._mib * BYTES_PER_MIB:
            return
        self._is_telling = True  # the end of the measuring takes a last reading
        try:
            reached(used_bytes)
        finally:
            self._is_telling = False


def wrapped(thing: Any, begin: Callable[[], object], end: Callable[[], object]) -> Any:
    """`thing`, a function or what decorators make of one, with calls of `begin` and `end` around each call of its
    Python code."""

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        begin()
        try:
            yield
        finally:
            end()

    found = wrapping.with_functions(thing, lambda func: calls.wrapped(func, around))
    is_opaque = found is thing and callable(thing) and not isinstance(thing, type)
    return calls.wrapped(thing, around) if is_opaque else found


class _PerCall(threading.local):
    """The profiler of the outermost call of one decorated function in one thread."""

    depth = 0
    profiler: CompatLineProfiler | None = None


def profile(
    func: Callable[..., Any] | None = None,
    stream: TextIO | None = None,
    precision: int = 1,
    backend: str = backends.DEFAULT,
) -> Any:
    """Decorator that prints the memory of every line after each call, to `stream` or to stdout.

    The report is also printed if the function raises. A recursive call has one report, a generator has one when it is
    exhausted or closed. HIWATER_PROFILE=0 in the environment disables the decorator. Under `python -m memory_profiler`
    a bare `@profile` adds to the report at the end of the program, wherever it was imported from.
    """
    if func is None:
        return functools.partial(profile, stream=stream, precision=precision, backend=backend)
    if os.environ.get(SWITCH) == "0":
        return func
    if session.profiler is not None and stream is None:
        return session.profiler(func)
    chosen = backends.choose_backend(backend)
    state = _PerCall()

    def begin() -> None:
        if state.depth == 0:
            state.profiler = CompatLineProfiler(backend=chosen)
            state.profiler.add_function(func)
            state.profiler.code_map.engine.enable(here=True)  # other threads have a report of their own
        state.depth += 1

    def end() -> None:
        state.depth -= 1
        if state.depth == 0 and state.profiler is not None:
            profiler, state.profiler = state.profiler, None
            profiler.disable()
            show_results(profiler, stream=stream, precision=precision)

    return wrapped(func, begin, end)


def show_results(prof: CompatLineProfiler, stream: TextIO | None = None, precision: int = 1) -> None:
    """Write the report: for every line the highest memory at its end, the sum of its changes, and how often it ran.

    Sizes are MiB with `precision` decimals.
    """
    out = sys.stdout if stream is None else stream
    number = "{:" + str(precision + 4) + "." + str(precision) + "f} MiB"
    for filename, measured in prof.code_map.items():
        out.write(f"Filename: {session.shown_path(filename)}\n\n{_HEADER}\n{'=' * len(_HEADER)}\n")
        source = linecache.getlines(filename)
        for row in _rows(measured, source, number):
            out.write(row)
        out.write("\n\n")


def _rows(measured: Iterable[tuple[int, Figures | None]], source: list[str], number: str) -> Iterator[str]:
    for line, figures in measured:
        text = source[line - 1] if line <= len(source) else "\n"
        cells = ("", "", "")
        if figures is not None:
            increment, most, occurrences = figures
            cells = (number.format(most), number.format(increment), str(occurrences))
        yield _ROW.format(line, *cells, text if text.endswith("\n") else text + "\n")
