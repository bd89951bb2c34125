"""`@hiwater.profile`: measures the lines of functions, and prints the report when the program ends.

There is one session for the process. `hiwater lines` starts it before the program and prints the report itself.
Otherwise the first decorated function starts it, and the report goes to stderr or to the stream of each function.
"""

from __future__ import annotations

import atexit
import os
import sys

from hiwater._os import portable
from hiwater.lines import child_figures, report
from hiwater.lines.functions import codes_of
from hiwater.lines.profiler import LineProfiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar, overload

    from hiwater.lines.figures import FunctionLines

    Thing = TypeVar("Thing")

    class Stream(Protocol):
        """A stream to which text can be written."""

        def write(self, text: str, /) -> object: ...


_SWITCH = "HIWATER_PROFILE"
_OFF = {"0", "false", "no", "off"}


class DecoratedFunctions:
    """The decorated functions of this process, and how each is shown."""

    def __init__(self) -> None:
        self._profilers: dict[bool, LineProfiler] = {}  # by whether resident memory is read
        self._shown: dict[int, tuple[Stream | None, int, bool]] = {}
        self.resident = True  # for functions whose decorator does not say
        self._owner = os.getpid()
        self._prints_at_exit = False
        self._folder = ""  # for the figures of children
        atexit.register(self._remove_folder)  # first, so that it runs after the report
        portable.at_fork(before=self._before_fork, after_in_child=self._begin_in_child)

    def add(self, thing: Thing, stream: Stream | None, precision: int, resident: bool) -> Thing:
        """Measure the lines of `thing` from now on; return the function to call."""
        for code in codes_of(thing):
            self._shown.setdefault(id(code), (stream, precision, resident))
        return self.profiler(resident).wrap(thing)

    def profiler(self, resident: bool) -> LineProfiler:
        """The session's profiler with or without resident memory."""
        if resident not in self._profilers:
            self._profilers[resident] = LineProfiler(resident=resident)
            if self._is_child:
                self._profilers[resident].keep_in(self._folder)
        return self._profilers[resident]

    def print_at_exit(self) -> None:
        """Print the report when the program ends, unless a signal or os._exit() ends it."""
        if not self._prints_at_exit:
            self._prints_at_exit = True
            atexit.register(self._print)

    def take_over(self) -> None:
        """Print nothing at the end: the caller prints `results()`."""
        self._prints_at_exit = True

    def join(self, folder: str, *, resident: bool) -> None:
        """Leave the figures of this process in its parent's folder."""
        self._prints_at_exit = True
        self._folder = folder
        self._owner = 0
        self.resident = resident

    def results(self) -> list[FunctionLines]:
        """Return the lines of all decorated functions, with those of child processes."""
        found = [function for profiler in self._profilers.values() for function in profiler.results()]
        child_figures.add_figures(found, self._folder)
        return found

    @property
    def displaced(self) -> int:
        """The number of threads in which another tracer replaced ours."""
        return max((profiler.displaced for profiler in self._profilers.values()), default=0)

    @property
    def why_without_heap(self) -> str:
        """Why there are no heap figures; "" if there are."""
        return next((profiler.why_without_heap for profiler in self._profilers.values()), "")

    @property
    def _is_child(self) -> bool:
        return os.getpid() != self._owner

    def folder(self) -> str:
        """The folder for the figures of children, made at first use; "" if there can be none."""
        if not self._folder:
            self._folder = child_figures.make_folder()
        return self._folder

    def _remove_folder(self) -> None:
        if self._folder and not self._is_child:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)

    def _before_fork(self) -> None:
        if self._profilers:
            self.folder()

    def _begin_in_child(self) -> None:
        if self._folder:
            for profiler in self._profilers.values():
                profiler.keep_in(self._folder)

    def _print(self) -> None:
        if self._is_child:
            return  # a forked child that ran to the interpreter's end: the report is its parent's
        groups: dict[tuple[int, int, bool], tuple[Stream | None, list[FunctionLines]]] = {}
        results = self.results()
        for resident, profiler in self._profilers.items():
            found = dict(zip(map(id, profiler.codes), results, strict=False))
            results = results[len(found) :]  # the last ones, which children alone know, are in no report
            for code, (stream, precision, _) in self._shown.items():
                if code in found:
                    groups.setdefault((id(stream), precision, resident), (stream, []))[1].append(found[code])
        why = self.why_without_heap
        for (_, precision, resident), (stream, functions) in groups.items():
            _write(stream, report.as_text(functions, precision=precision, resident=resident, why_without_heap=why))
        if self.displaced:
            lost = f"another tracer took over in {self.displaced} threads: lines after that are missing"
            _write(None, f"hiwater: {lost}\n")


_session: DecoratedFunctions | None = None


def session() -> DecoratedFunctions:
    """Return the process's session, made at first use."""
    global _session  # noqa: PLW0603 - one for the process, as the interpreter's events are
    if _session is None:
        _session = DecoratedFunctions()
    return _session


if TYPE_CHECKING:

    @overload
    def profile(function: Thing, /) -> Thing: ...
    @overload
    def profile(
        *, stream: Stream | None = None, precision: int = 1, resident: bool | None = None
    ) -> Callable[[Thing], Thing]: ...


def profile(
    function: Any = None, /, *, stream: Stream | None = None, precision: int = 1, resident: bool | None = None
) -> Any:
    """Measure a function line by line whenever it is called, and print the report when the program ends.

        @hiwater.profile
        def load(): ...

        @hiwater.profile(stream=open("lines.txt", "w"), precision=3)
        class Parser: ...

    Takes functions, coroutine and generator functions, methods of any kind, properties and whole classes. The report
    goes to `stream` or stderr, with `precision` digits after the point. `resident=False` leaves resident memory out,
    which makes a line event some twenty times cheaper. HIWATER_PROFILE=0 in the environment disables the decorator: it
    returns functions unchanged. Without the engine the report has only resident memory, and says so.

    Raises EngineUnavailable if there is no engine and resident memory is left out, and EngineFailed if the engine
    cannot count.
    """
    if os.environ.get(_SWITCH, "").lower() in _OFF:
        return function if function is not None else lambda thing: thing
    if function is None:
        return lambda thing: _decorate(thing, stream, precision, resident)
    return _decorate(function, stream, precision, resident)


def _decorate(thing: Any, stream: Stream | None, precision: int, resident: bool | None) -> Any:
    current = session()
    current.print_at_exit()
    return current.add(thing, stream, precision, current.resident if resident is None else resident)


def _write(stream: Stream | None, text: str) -> None:
    """Write to the stream, or to the stderr with which the process started. Errors of a closed stream are ignored."""
    target = stream if stream is not None else sys.__stderr__
    if target is None or not text:
        return
    try:
        target.write(text)
        flush = getattr(target, "flush", None)
        if flush is not None:
            flush()
    except (OSError, ValueError):
        return
