"""The cells of the notebook, whose code this process sends to others by value, for their captures: other code comes
with the `__file__` of its module, which the engine finds. `hiwater/capture/sent_code.py` reads the fact."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType

from hiwater.recording import cells

FACT = "sent code"
_LONGEST_FACT = 50_000


def files() -> str:
    """The fact: code of the notebook's cells; of none outside a notebook."""
    found: dict[str, list[tuple[str, int]]] = {}
    length = 0
    for file, text in _sources():
        with suppress(SyntaxError, ValueError):
            for code in _inner(compile(text, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)):
                length += len(json.dumps(code.co_qualname)) + 10
                if length < _LONGEST_FACT:
                    found.setdefault(file, []).append((code.co_qualname, code.co_firstlineno))
    return json.dumps(found)


def _sources() -> Iterator[tuple[str, str]]:
    shell = cells.session()
    yield from ((file, text) for file, _, text in cells.of_session(shell)) if shell is not None else ()


def _inner(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _inner(one)
