"""Both recorders of lines, for tests that run over each: the engine's, where it was built, and its twin in Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hiwater.lines import core, without_engine
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
