"""Finds the code objects of functions, with or without wrappers, of classes and of modules."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from types import CodeType

# What has a function in `func`.
_HOLDERS = (functools.partial, functools.partialmethod, functools.cached_property, functools.singledispatchmethod)
_LONGEST_CHAIN = 100  # of nested wrappers, in case they form a circle


def codes_of(thing: object) -> list[CodeType]:
    """Return the code objects of `thing`, each once: one for a function, those of its members for a class or a module.

    Follows methods, partials, properties, class and static methods, and `__wrapped__` to the function at the bottom. A
    running generator or coroutine stands for its function.
    """
    return list({id(code): code for code in _codes(thing)}.values())  # by id: two equal code objects stay two


def nested_codes(code: CodeType) -> list[CodeType]:
    """Return the code objects inside `code`: its lambdas, comprehensions, inner functions and classes, at any depth."""
    found = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += [constant, *nested_codes(constant)]
    return found


def line_range(codes: list[CodeType]) -> tuple[int, int]:
    """Return the first and the last line of the code objects."""
    lines = {code.co_firstlineno for code in codes}
    for code in codes:
        lines.update(line for _, _, line in code.co_lines() if line)  # the code of a module has an empty line 0
    return min(lines), max(lines)


def _codes(thing: object) -> Iterator[CodeType]:
    if isinstance(thing, types.CodeType):
        yield thing
    elif isinstance(thing, types.ModuleType):
        for member in list(vars(thing).values()):
            if getattr(member, "__module__", None) == thing.__name__:
                yield from _codes(member)
    elif isinstance(thing, type):
        yield from _codes_of_class(thing)
    else:
        yield from _codes_of_callable(thing)


def _codes_of_class(kind: type) -> Iterator[CodeType]:
    for member in list(vars(kind).values()):
        if isinstance(member, type):
            if member.__qualname__.startswith(kind.__qualname__ + "."):
                yield from _codes_of_class(member)
        else:
            yield from _codes_of_callable(member)


def _codes_of_callable(thing: object) -> Iterator[CodeType]:
    if isinstance(thing, property):
        for accessor in (thing.fget, thing.fset, thing.fdel):
            if accessor is not None:
                yield from _codes_of_callable(accessor)
        return
    inner = _innermost(thing)
    for name in ("__code__", "gi_code", "cr_code", "ag_code"):
        code = getattr(inner, name, None)
        if isinstance(code, types.CodeType):
            yield code
            return
    call = next((vars(kind)["__call__"] for kind in type(inner).__mro__ if "__call__" in vars(kind)), None)
    if isinstance(call, types.FunctionType):  # an object that is called like a function
        yield call.__code__


def _innermost(thing: object) -> object:
    """The function inside a method, a partial, or decorators that set `__wrapped__`."""
    for _ in range(_LONGEST_CHAIN):
        if isinstance(thing, _HOLDERS):
            thing = thing.func
        elif isinstance(thing, types.MethodType | classmethod | staticmethod):
            thing = thing.__func__
        elif isinstance(thing, type) or not hasattr(thing, "__wrapped__"):
            break
        else:
            thing = thing.__wrapped__
    return thing
