"""The module that counts lines: the engine, or, if there is none, `hiwater.lines.without_engine` with the same
functions."""

from __future__ import annotations

from hiwater._os import native
from hiwater.errors import EngineUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_module: Any = None
_why_without_heap = ""


def module() -> Any:
    """The engine's module, or `hiwater.lines.without_engine`."""
    global _module, _why_without_heap  # noqa: PLW0603 - chosen once for the process
    if _module is None:
        try:
            _module = native.load()
        except EngineUnavailable as error:
            _why_without_heap = error.problem
        if not hasattr(_module, "LineRecorder"):  # nor has an engine that records Python's objects alone
            from hiwater.lines import without_engine

            _module = without_engine
    return _module


def counts_heap() -> bool:
    """Whether it can count allocations."""
    return hasattr(module(), "heap_open")


def why_without_heap() -> str:
    """Why it cannot count allocations; "" if it can."""
    return "" if counts_heap() else _why_without_heap or "the engine was left out"
