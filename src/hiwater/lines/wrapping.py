"""Wraps functions so that they trace their thread while they run: for Python 3.11, which has no events for single
code objects."""

from __future__ import annotations

import functools
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any

    Switch = Callable[[], object]

_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80, 0x20, 0x200  # inspect.CO_…; inspect itself is slow to import
_ITERABLE_COROUTINE = 0x100


def wrap(thing: Any, begin: Switch, end: Switch) -> Any:
    """Return an object that behaves as `thing`, and calls `begin` before and `end` after each part of it that runs;
    None if there cannot be one.

    A function is one part. A generator has a part between two yields, a coroutine between two awaits. Other things are
    treated as by `with_functions()`.
    """
    found = []

    def replace(function: types.FunctionType) -> Any:
        found.append(function)
        return _wrap_function(function, begin, end)

    replaced = with_functions(thing, replace)
    return replaced if found else None


def with_functions(thing: Any, replace: Callable[[types.FunctionType], Any]) -> Any:
    """Return an object of the kind of `thing` whose Python functions are those that `replace` returns for them.

    In a class the members are replaced, and some objects are changed in place: the program may have another name for
    them. An object that holds its function in a way of its own, or has none, is returned unchanged.
    """
    if isinstance(thing, type):
        for name, member in list(vars(thing).items()):
            replaced = member if isinstance(member, type) else with_functions(member, replace)
            if replaced is not member:
                setattr(thing, name, replaced)
        return thing
    if isinstance(thing, types.FunctionType):
        return replace(thing)
    if isinstance(thing, staticmethod | classmethod):
        return type(thing)(with_functions(thing.__func__, replace))
    if isinstance(thing, property):
        return _property_with_functions(thing, replace)
    if isinstance(thing, functools.partial):
        return type(thing)(with_functions(thing.func, replace), *thing.args, **thing.keywords)
    if isinstance(thing, types.MethodType):
        return types.MethodType(with_functions(thing.__func__, replace), thing.__self__)
    if isinstance(thing, functools._lru_cache_wrapper):
        cached = functools.lru_cache(**thing.cache_parameters())(with_functions(thing.__wrapped__, replace))
        cached.__dict__.update(thing.__dict__)
        return cached
    if isinstance(thing, functools.cached_property | functools.partialmethod):
        thing.func = with_functions(thing.func, replace)
    elif isinstance(thing, functools.singledispatchmethod):
        thing.func = thing.dispatcher.register(object, with_functions(thing.func, replace))
    return thing


def _property_with_functions(thing: property, replace: Callable[[types.FunctionType], Any]) -> property:
    """By its own methods, which keep its class and its documentation."""
    for accessor, exchange in (("fget", "getter"), ("fset", "setter"), ("fdel", "deleter")):
        function = getattr(thing, accessor)
        if function is not None:
            thing = getattr(thing, exchange)(with_functions(function, replace))
    return thing


def _wrap_function(function: types.FunctionType, begin: Switch, end: Switch) -> Any:
    flags = function.__code__.co_flags
    if flags & _ASYNC_GENERATOR:
        return _wrap_async_generator(function, begin, end)
    if flags & _COROUTINE:
        return _wrap_coroutine(function, begin, end)
    if flags & _GENERATOR:
        wrapper = _wrap_generator(function, begin, end)
        return types.coroutine(wrapper) if flags & _ITERABLE_COROUTINE else wrapper
    return _wrap_plain(function, begin, end)


def _wrap_plain(function: Callable[..., Any], begin: Switch, end: Switch) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        begin()
        try:
            return function(*arguments, **keywords)
        finally:
            end()

    return wrapper


def _wrap_generator(function: Callable[..., Any], begin: Switch, end: Switch) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Generator[Any, Any, Any]:
        return (yield from _Steps(function(*arguments, **keywords), begin, end))

    return wrapper


def _wrap_coroutine(function: Callable[..., Any], begin: Switch, end: Switch) -> Any:
    @functools.wraps(function)
    async def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return await _Steps(function(*arguments, **keywords), begin, end)

    return wrapper


def _wrap_async_generator(function: Callable[..., Any], begin: Switch, end: Switch) -> Any:
    @functools.wraps(function)
    async def wrapper(*arguments: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*arguments, **keywords)
        step = inner.asend(None)
        while True:
            try:
                item = await _Steps(step, begin, end)
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                await _Steps(inner.aclose(), begin, end)
                raise
            except BaseException as error:  # noqa: BLE001 - whatever is thrown in is for the inner one
                step = inner.athrow(error)
            else:
                step = inner.asend(sent)

    return wrapper


class _Steps:
    """Runs a generator or an awaitable step by step, each between `begin` and `end`."""

    def __init__(self, steps: Any, begin: Switch, end: Switch) -> None:
        self._steps = steps
        self._begin = begin
        self._end = end

    def __await__(self) -> _Steps:
        return self

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        return self._run(self._steps.send, None)

    def send(self, value: Any) -> Any:
        return self._run(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self._run(self._steps.throw, *error)

    def close(self) -> None:
        self._run(self._steps.close)

    def _run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        self._begin()
        try:
            return step(*arguments)
        finally:
            self._end()
