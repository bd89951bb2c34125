"""memory_profiler's `TimeStamper` and `LogFile`."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager

from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.sampling import backends, scope_file
from hiwater.sampling.usage import memory_usage
from hiwater.scopes import calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TextIO

    Stamp = tuple[float, float]  # MiB, seconds since 1970


class TimeStamper:
    """Notes when functions and blocks ran, and the memory at their start and end: the FUNC lines of an mprof file.

    Each thread has its own depth, also after an exception. A coroutine or generator lasts until it has ended.
    """

    def __init__(self, backend: str = backends.DEFAULT, include_children: bool = False) -> None:
        self.functions: dict[Any, list[tuple[Stamp, Stamp]]] = defaultdict(list)
        self.stack: dict[Any, list[int]] = defaultdict(list)
        self.backend = backends.choose_backend(backend)
        self.include_children = include_children
        self._lock = threading.Lock()
        self._depth = threading.local()

    @property
    def current_stack_level(self) -> int:
        """The number of measured blocks around the current code of this thread, minus one."""
        return getattr(self._depth, "value", 0) - 1

    def __call__(self, func: Callable[..., Any] | None = None, precision: int | None = None) -> Any:
        if func is None:
            return functools.partial(self.__call__, precision=precision)
        self.add_function(func)
        return self.wrap_function(func)

    def add_function(self, func: Callable[..., Any]) -> None:
        self.functions[func]  # reading creates the entry

    @contextmanager
    def timestamp(self, name: str = "<block>") -> Iterator[_Block]:
        """Note a block under `name`."""
        block = _Block(name)
        with self._noted(block, f"{block.__module__}.{name}"):
            yield block

    def wrap_function(self, func: Callable[..., Any]) -> Any:
        """The function wrapped so that its runs are noted."""
        name = f"{func.__module__}.{func.__name__}"
        return calls.wrapped(func, lambda: self._noted(func, name))

    @contextmanager
    def _noted(self, key: Any, name: str) -> Iterator[None]:
        level = self.current_stack_level + 1
        self._depth.value = level + 1
        start, start_ns = self._stamp(), time.monotonic_ns()
        try:
            yield
        finally:
            end = self._stamp()
            self._depth.value = level
            with self._lock:
                self.functions[key].append((start, end))
                self.stack[key].append(level)
            if scope_file.wanted():
                sizes = (int(stamp[0] * BYTES_PER_MIB) for stamp in (start, end))
                scope_file.append(
                    name, start_ns, time.monotonic_ns(), depth=level, start_bytes=next(sizes), end_bytes=next(sizes)
                )

    def _stamp(self) -> Stamp:
        used: float
        if self.backend == backends.TRACEMALLOC:
            import tracemalloc

            used = tracemalloc.get_traced_memory()[0] / BYTES_PER_MIB
        else:
            used = memory_usage(-1, include_children=self.include_children, backend=self.backend)[0]
        return used, time.time()

    def show_results(self, stream: TextIO | None = None) -> None:
        """Write a FUNC line for every noted run."""
        out = sys.stdout if stream is None else stream
        for key, runs in self.functions.items():
            name = f"{key.__module__}.{key.__name__}".replace(" ", "_")  # a space would end the field
            for (start, end), level in zip(runs, self.stack[key], strict=True):
                out.write(f"FUNC {name} {start[0]:.4f} {start[1]:.4f} {end[0]:.4f} {end[1]:.4f} {level}\n")


class _Block:
    """A block with a name, in the place of a function."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__module__ = "__main__"


class LogFile:
    """A text file that writes to `logging`, to replace sys.stdout.

    With `reportIncrementFlag`, only the headers of a report and its rows with an increment above zero are written.
    """

    def __init__(self, name: str | None = None, reportIncrementFlag: bool = False) -> None:  # noqa: N803 - their name
        self.logger = logging.getLogger(name)
        self.reportIncrementFlag = reportIncrementFlag

    def write(self, msg: str, level: int = logging.INFO) -> None:
        if not msg or msg.isspace():
            return
        if self.reportIncrementFlag and "MiB" in msg:
            words = msg.split("MiB")
            increment = words[1].strip() if len(words) > 2 else "0"
            try:
                if float(increment) <= 0:
                    return
            except ValueError:
                pass
        elif self.reportIncrementFlag and not msg.startswith(("Filename:", "Line #")):
            return
        self.logger.log(level, msg.rstrip("\n"))

    def flush(self) -> None:
        for handler in self.logger.handlers:
            handler.flush()
