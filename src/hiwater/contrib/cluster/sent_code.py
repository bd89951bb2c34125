"""The files of code that this process sends to others by value, for their captures. `hiwater/capture/sent_code.py`
reads the fact."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType

FACT = "sent code"
_LONGEST_FACT = 50_000


def files() -> str:
    """The fact: code of the script or of the notebook's cells, and of modules that are registered for cloudpickle to
    send by value."""
    found: dict[str, list[tuple[str, int]]] = {}
    length = 0
    for file, text in _sources():
        with suppress(SyntaxError, ValueError):
            for code in _inner(compile(text, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)):
                length += len(json.dumps(code.co_qualname)) + 10
                if length < _LONGEST_FACT:
                    found.setdefault(file, []).append((code.co_qualname, code.co_firstlineno))
    return json.dumps(found)


def _sources() -> Iterator[tuple[str, str | bytes]]:
    cloudpickle = sys.modules.get("cloudpickle")
    registered = cloudpickle.list_registry_pickle_by_value() if cloudpickle is not None else ()
    for name in ("__main__", *sorted(registered)):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            with suppress(OSError):
                yield file, Path(file).read_bytes()
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        from hiwater.notebook import cells

        shell = get_ipython()
        yield from ((file, text) for file, _, text in cells.of_session(shell)) if shell is not None else ()


def _inner(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _inner(one)
