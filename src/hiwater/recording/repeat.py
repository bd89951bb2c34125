"""Calls one function again and again in a recording, with a marker after each call: the program that `hiwater leaks
--repeat` runs.

`python -m hiwater.recording.repeat COUNT PLACE`. Garbage is collected before each marker, so that cycles that the
collector can free are no growth. Exits with 2 if there is no such function, and as the interpreter does if the function
raises an exception.
"""

from __future__ import annotations

import gc
import os
import sys

import hiwater
from hiwater import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MARKER = "call"
_CO_COROUTINE = 0x80


def find_function(place: str) -> Callable[[], Any]:
    """The function that `pkg.mod:func`, `pkg.mod:Class.method` or `file.py:func` names. Raises BadRequest."""
    where, separator, path = place.rpartition(":")
    if not separator or not where or not path:
        raise errors.BadRequest(
            f"{place!r} is not the name of a function", "write package.module:function or file.py:function"
        )
    try:
        found: Any = _load_file(where) if where.endswith(".py") else _load_module(where)
    except (ImportError, FileNotFoundError) as error:
        raise errors.BadRequest(
            f"{where!r} cannot be loaded ({error})", "check the name, and the folder you are in"
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise errors.BadRequest(
                f"{where!r} has no {path!r}", "give a function that can be called without arguments"
            ) from None
    if not callable(found):
        raise errors.BadRequest(f"{place!r} is not a function", "give a function that can be called without arguments")
    function: Callable[[], Any] = found
    return function


def _load_module(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(name)


def _load_file(path: str) -> ModuleType:
    import importlib.util

    absolute = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(absolute))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, absolute)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def repeat(function: Callable[[], Any], count: int) -> None:
    """Call `function` so many times, each time followed by a collection of garbage and a marker. Coroutines are run
    in one event loop."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & _CO_COROUTINE:
        for _ in range(count):
            function()
            _end_call()
        return
    import asyncio

    with asyncio.Runner() as runner:
        for _ in range(count):
            runner.run(function())
            _end_call()


def _end_call() -> None:
    gc.collect()
    hiwater.mark(MARKER)  # retired word: mark is the name of the public function


def main() -> None:
    count, place = sys.argv[1:]
    sys.argv = [place]
    try:
        function = find_function(place)
    except errors.HiwaterError as error:
        print(f"hiwater: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    repeat(function, int(count))


if __name__ == "__main__":
    main()
