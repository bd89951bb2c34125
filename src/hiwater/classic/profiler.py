"""memory_profiler's `profile`, `LineProfiler`, `CodeMap` and `show_results`, with its words and its layout."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
import threading
import warnings

from hiwater.classic import lines as line_engine
from hiwater.classic import session
from hiwater.sampling import backends
from hiwater.sampling.procfs import BYTES_PER_MIB
from hiwater.sampling.usage import memory_usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType, TracebackType
    from typing import Any, Self, TextIO

    Figures = tuple[float, float, int]

_ROW = "{0:>6} {1:>12} {2:>12}  {3:>10}   {4:<}"
_HEADER = _ROW.format("Line #", "Mem usage", "Increment", "Occurrences", "Line Contents")
SWITCH = "HIWATER_PROFILE"  # "0" turns the decorator off


class CodeMap(dict):  # type: ignore[type-arg]  # a dict of what memory_profiler's users expect in it
    """Code object → {line: (increment, most used, occurrences)}, in MiB."""

    def __init__(self, include_children: bool = False, backend: str | None = None) -> None:
        super().__init__()
        self.include_children = include_children
        self.backend = backends.choose_backend(backend)
        self.engine = line_engine.LineProfiler(meter=_meter(self.backend, include_children))

    def add(self, code: CodeType, toplevel_code: CodeType | None = None) -> None:
        """Measure the lines of `code`; those written inside it belong to it."""
        if toplevel_code is None and code not in self:
            self[code] = {}
            self.engine.add_code(code)

    def refresh(self) -> None:
        """Fill in what was measured so far."""
        for function in self.engine.results():
            self[function.code] = {
                number: (figures.kept_bytes / BYTES_PER_MIB, figures.resident_end_bytes / BYTES_PER_MIB, figures.calls)
                for number, figures in function.lines.items()
            }

    def items(self) -> Iterator[tuple[str, Iterator[tuple[int, Figures | None]]]]:  # type: ignore[override]
        """For each function its file and all of its lines, those that never ran with None."""
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


def _meter(backend: str, include_children: bool) -> Callable[[], int]:
    if backend == backends.TRACEMALLOC:
        import tracemalloc

        if not tracemalloc.is_tracing():
            tracemalloc.start()
        return lambda: tracemalloc.get_traced_memory()[0]
    if include_children or backend not in {"psutil", "posix"}:
        usage = functools.partial(memory_usage, -1, include_children=include_children, backend=backend)
        return lambda: int(usage()[0] * BYTES_PER_MIB)
    return line_engine.resident_meter()


class LineProfiler:
    """Measures functions line by line: as a decorator, a context manager, or by `runctx`."""

    def __init__(self, **kw: Any) -> None:
        """Takes `include_children`, `backend` and `max_mem`: MiB at which a debugger is entered."""
        self.include_children = bool(kw.get("include_children", False))
        self.backend = backends.choose_backend(kw.get("backend"))
        self.code_map = CodeMap(self.include_children, self.backend)
        self.max_mem: float | None = kw.get("max_mem")
        self.functions: list[Callable[..., Any]] = []
        self.enable_count = 0
        self._tracer_before: Any = None

    def __call__(self, func: Callable[..., Any] | None = None, precision: int = 1) -> Any:
        if func is None:
            return functools.partial(self.__call__, precision=precision)
        self.add_function(func)
        return self.wrap_function(func)

    def add_function(self, func: Callable[..., Any]) -> None:
        """Measure this function; one without code of its own gives a warning."""
        try:
            code = inspect.unwrap(func).__code__
        except AttributeError:
            warnings.warn(f"Could not extract a code object for the object {func!r}", stacklevel=2)
            return
        self.code_map.add(code)
        self.functions.append(func)

    def wrap_function(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function, measured while it runs: a coroutine or generator for as long as it goes on."""
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
        if self.max_mem is not None:
            self._tracer_before = sys.gettrace()
            sys.settrace(self.trace_max_mem)
        else:
            self.code_map.engine.enable()

    def disable(self) -> None:
        if self.max_mem is not None:
            sys.settrace(self._tracer_before)
        else:
            self.code_map.engine.disable()

    def __enter__(self) -> Self:
        self.enable_by_count()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disable_by_count()

    def trace_memory_usage(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A trace function for `sys.settrace` that measures this profiler's functions."""
        return line_engine.trace_for(self.code_map.engine, frame, event, arg)

    def trace_max_mem(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002 - what trace functions take
        """A trace function that enters the debugger at the first measured line where `max_mem` is reached."""
        if event in {"line", "return"} and self.code_map.engine.measures(frame.f_code):
            used = self.code_map.engine.read() / BYTES_PER_MIB
            if self.max_mem is not None and used >= self.max_mem:
                from pdb import Pdb

                sys.stdout.write(
                    f"Current memory {used:.2f} MiB exceeded the maximum of {self.max_mem:.2f} MiB\n"
                    f"Stepping into the debugger \n"
                )
                frame.f_lineno  # noqa: B018 - brought up to date by being read, for the debugger
                debugger = Pdb(nosigint=True)
                self.disable()
                debugger.set_trace(frame)
                return None
        return self.trace_max_mem

    def print_stats(self, stream: TextIO | None = None, precision: int = 1) -> None:
        show_results(self, stream, precision)


def wrapped(func: Callable[..., Any], begin: Callable[[], object], end: Callable[[], object]) -> Callable[..., Any]:
    """`func` with `begin` and `end` around every stretch in which its own code may run."""
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return await func(*args, **kwargs)
            finally:
                end()

        return run_coroutine
    if inspect.isasyncgenfunction(func):

        @functools.wraps(func)
        async def run_async_generator(*args: Any, **kwargs: Any) -> Any:
            begin()
            generator = func(*args, **kwargs)
            try:
                async for value in generator:
                    yield value
            finally:
                await generator.aclose()
                end()

        return run_async_generator
    if inspect.isgeneratorfunction(func):

        @functools.wraps(func)
        def run_generator(*args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return (yield from func(*args, **kwargs))
            finally:
                end()

        return run_generator

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return func(*args, **kwargs)
        finally:
            end()

    return run


class _PerCall(threading.local):
    """The profiler of the outermost call of one decorated function in one thread."""

    depth = 0
    profiler: LineProfiler | None = None


def profile(
    func: Callable[..., Any] | None = None,
    stream: TextIO | None = None,
    precision: int = 1,
    backend: str = backends.DEFAULT,
) -> Any:
    """Decorator that prints, after each call, what every line of the function used: to `stream`, or to stdout.

    The report comes also when the function raises, once for a recursive call, and for a generator when it is exhausted or
    closed. HIWATER_PROFILE=0 in the environment turns it off. Under `python -m memory_profiler` a bare `@profile` adds to the
    report at the end of the program, wherever it was imported from.
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
            state.profiler = LineProfiler(backend=chosen)
            state.profiler.add_function(func)
            state.profiler.enable_by_count()
        state.depth += 1

    def end() -> None:
        state.depth -= 1
        if state.depth == 0 and state.profiler is not None:
            profiler, state.profiler = state.profiler, None
            profiler.disable_by_count()
            show_results(profiler, stream=stream, precision=precision)

    return wrapped(func, begin, end)


def show_results(prof: LineProfiler, stream: TextIO | None = None, precision: int = 1) -> None:
    """Write the report: for every line the most used at its end, the sum of its changes, and how often it ran.

    Sizes are MiB with `precision` decimals.
    """
    out = sys.stdout if stream is None else stream
    number = "{:" + str(precision + 4) + "." + str(precision) + "f} MiB"
    for filename, measured in prof.code_map.items():
        out.write(f"Filename: {filename}\n\n{_HEADER}\n{'=' * len(_HEADER)}\n")
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
