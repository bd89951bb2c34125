"""`@profile`, `@profile_every(n)` and the profiler that they share, which is made at first use."""

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
    """The profiler of all decorated functions."""
    global _global  # noqa: PLW0603 - one for the process
    if _global is None:
        _global = _kind()
    return _global


_kind: type[LineProfiler] = LineProfiler


def use(kind: type[LineProfiler]) -> None:
    """Use this class for the shared profiler, if it is not made yet. The class of the drop-in formats sizes
    differently."""
    global _kind  # noqa: PLW0603 - as above
    _kind = kind


def clear_global_line_profiler() -> None:
    """Reset the figures of all decorated functions to zero. The functions stay decorated."""
    if _global is not None:
        _global.clear()


def set_target_gpu(gpu_id: Any) -> None:
    """Choose the device on which decorated functions are measured, from the next line on: a number, "cuda:1" or a
    `torch.device`.

    May be called in a measured function. Raises BadRequest if `gpu_id` names no device.
    """
    global_line_profiler().target_gpu = gpu_id


def profile(func: Function, columns: Sequence[str] = DEFAULT_COLUMNS) -> Function:
    """Measure a function line by line whenever it is called, and print its table on stdout when the program ends."""
    profiler = global_line_profiler()
    wrapped = profiler.wrap(func)
    owner = os.getpid()

    def print_at_exit() -> None:
        if os.getpid() == owner:  # a forked child that runs to its end would print its parent's report
            _print(profiler, func, columns)

    atexit.register(print_at_exit)
    return wrapped


def profile_every(
    output_interval: int = 1, enable: bool = True, columns: Sequence[str] = DEFAULT_COLUMNS
) -> Callable[[Function], Function]:
    """Measure a function whenever it is called, and print its table on stdout after every `output_interval` calls.

    With `enable=False` the function is returned unchanged.
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
    """Print the table. An unknown column is an error on stderr: it must not change the function's result or the
    program's exit code."""
    try:
        profiler.print_stats(func, columns)
    except ValueError as error:  # also raised by a closed stdout
        if sys.__stderr__ is not None:
            sys.__stderr__.write(f"hiwater: {error}\n")
