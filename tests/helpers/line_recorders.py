"""Both recorders of lines, for tests that run over each: the engine's, where it was built, and its twin in Python;
and the figures of a named line."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import pytest

from hiwater.lines import FunctionLines, LineFigures, core, without_engine
from recording import needs_engine

RECORDERS = [pytest.param("engine", marks=needs_engine), "python"]


def use_recorder(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a fixture yields from: profilers made meanwhile use the recorder of this name."""
    if name == "python":
        monkeypatch.setattr(core, "_module", without_engine)
    else:
        from hiwater import _core

        monkeypatch.setattr(core, "_module", _core)
    yield name
    if name == "engine":
        _core.lines_self_check()


def of(results: list[FunctionLines], name: str) -> LineFigures:
    """The figures of the line that ends in `# @name`."""
    for function in results:
        for number in range(function.first_line, function.last_line + 1):
            if linecache.getline(function.file, number).rstrip().endswith(f"# @{name}"):
                return next((f for f in function.lines if f.line == number), LineFigures(number, 0, 0, 0, 0))
    raise AssertionError(f"no line is called {name}")
