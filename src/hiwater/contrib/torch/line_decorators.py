"""`@profile`, `@profile_every(n)` and the profiler that they share: made at first use, it measures a function while it is called."""

from __future__ import annotations

import atexit
import functools
import os
import sys

from hiwater.contrib.torch.lines import DEFAULT_COLUMNS, LineProfiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

_global: LineProfiler | None = None


def global_line_profiler() -> LineProfiler:
    """The profiler of all functions that are decorated."""
    global _global  # noqa: PLW0603 - one for the process
    if _global is None:
        _global = _kind()
    return _global


_kind: type[LineProfiler] = LineProfiler


def use(kind: type[LineProfiler]) -> None:
    """Make the shared profiler one of this kind, where it has not been made yet: the drop-in's writes sizes in its own manner."""
    global _kind  # noqa: PLW0603 - as above
    _kind = kind


def clear_global_line_profiler() -> None:
    """Forget what was measured so far of all functions that are decorated; they stay so."""
    if _global is not None:
        _global.clear()


def set_target_gpu(gpu_id: Any) -> None:
    """Choose the device on which decorated functions are measured from the next line on: a number, "cuda:1" or a `torch.device`.

    May be called in a function that is measured. Raises BadRequest for what names no device.
    """
    global_line_profiler().target_gpu = gpu_id


def profile(func: Function, columns: Sequence[str] = DEFAULT_COLUMNS) -> Function:
    """Measure a function line by line whenever it is called, and print its table on stdout when the program ends."""
    profiler = global_line_profiler()
    wrapped = profiler.wrap(func)
    owner = os.getpid()

    def print_at_exit() -> None:
        if os.getpid() == owner:  # the report of a forked child that runs to its end would be its parent's
            _print(profiler, func, columns)

    atexit.register(print_at_exit)
    return wrapped


def profile_every(
    output_interval: int = 1, enable: bool = True, columns: Sequence[str] = DEFAULT_COLUMNS
) -> Callable[[Function], Function]:
    """Measure a function whenever it is called, and print its table on stdout after every `output_interval` calls.

    `enable=False` leaves the function as it is.
    """

    def decorate(func: Function) -> Function:
        if not enable:
            return func
        profiler = global_line_profiler()
        measured = profiler.wrap(func)
        calls = 0

        @functools.wraps(measured)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            result = measured(*arguments, **keywords)
            calls += 1
            if calls % output_interval == 0:
                _print(profiler, func, columns)
            return result

        shown: Any = counted
        decorated: Function = shown
        return decorated

    return decorate


def _print(profiler: LineProfiler, func: object, columns: Sequence[str]) -> None:
    """A wrong column is told on stderr: the function's own result is not to be lost for it, nor the program's exit code."""
    try:
        profiler.print_stats(func, columns)
    except ValueError as error:  # of stdout, too, where it is closed by now
        if sys.__stderr__ is not None:
            sys.__stderr__.write(f"hiwater: {error}\n")
