"""Puts a context manager around the calls of a function of any kind."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager
    from typing import Any

    Around = Callable[[], AbstractContextManager[object]]


def wrapped(function: Callable[..., Any], around: Around) -> Any:
    """Return a wrapper of `function` with `with around():` around each call: around a coroutine or a generator from
    its first step to its end, including waits."""
    return functools.update_wrapper(_wrapper(function, around), function)


def _wrapper(function: Callable[..., Any], around: Around) -> Any:
    import inspect

    if inspect.iscoroutinefunction(function):

        async def measured_coroutine(*args: Any, **kwargs: Any) -> Any:
            with around():
                return await function(*args, **kwargs)

        return measured_coroutine
    if inspect.isasyncgenfunction(function):
        return _stream_wrapper(function, around)
    if inspect.isgeneratorfunction(function):

        def measured_generator(*args: Any, **kwargs: Any) -> Any:
            with around():
                return (yield from function(*args, **kwargs))

        return measured_generator

    def measured(*args: Any, **kwargs: Any) -> Any:
        with around():
            return function(*args, **kwargs)

    return measured


def _stream_wrapper(function: Callable[..., Any], around: Around) -> Any:
    async def measured_stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with around():
            source = function(*args, **kwargs)
            try:
                item = await anext(source)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - the source handles whatever the consumer throws
                        item = await source.athrow(error)
                    else:
                        item = await source.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await source.aclose()

    return measured_stream
