"""Moments and intervals that the program names, for the capture. Without a recording they cost less than a
microsecond and do nothing."""

from __future__ import annotations

from hiwater._os import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

_CO_COROUTINE = 0x80  # inspect has it, and python does not load that at its start


def mark(name: str) -> None:  # retired word: a public name, as a verb
    """Put a named marker into the capture, with the time and the stack. Without a recording, nothing happens.

    The first 10,000 markers of a recording are kept, with up to 1,000 different names.
    """
    core = native.loaded()
    if core is not None:
        core.add_marker(name)


class Phase:
    """A named interval of the program: a context manager and a decorator, made by `phase()`."""

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[int] = []

    def __enter__(self) -> None:
        core = native.loaded()
        self._open.append(0 if core is None else core.begin_scope(self._name))

    def __exit__(self, *_: object) -> None:
        scope = self._open.pop()
        if scope:
            native.load().end_scope(scope)

    def __call__(self, function: Function) -> Function:
        """Decorate a function or a coroutine function: each call is a phase."""
        import functools

        if function.__code__.co_flags & _CO_COROUTINE:

            async def awaited_in_phase(*args: Any, **kwargs: Any) -> Any:
                with Phase(self._name):
                    return await function(*args, **kwargs)

            wrapper: Callable[..., Any] = awaited_in_phase
        else:

            def in_phase(*args: Any, **kwargs: Any) -> Any:
                with Phase(self._name):
                    return function(*args, **kwargs)

            wrapper = in_phase
        return functools.wraps(function)(wrapper)  # type: ignore[return-value] # called like the function


def phase(name: str) -> Phase:
    """Return a context manager and decorator that makes a phase of its block in the capture: its time, the highest
    number of bytes that were allocated in it, and what was kept at its end. Without a recording, nothing happens.

        with hiwater.phase("load"):
            table = load()

        @hiwater.phase("request")
        async def handle(request): ...

    The figures are those of the whole process. The last 10,000 phases of a recording are kept, with up to 1,000
    different names.
    """
    return Phase(name)
