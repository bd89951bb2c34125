"""Plugins of a cluster that can be loaded where hiwater is not installed. There they are an engine's empty plugin: a
worker must start without hiwater, too."""

from __future__ import annotations

import builtins
import operator
import types
from typing import Any


class Portable:
    """A mixin for plugins. `state()` has the arguments to make the same plugin again; `base` is the engine's class
    as `module:name`, which takes none."""

    base = ""

    def state(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        return operator.call, (_by_value(_make), kind.__module__, kind.__qualname__, self.base, self.state())


def _make(module: str, name: str, base: str, state: tuple[Any, ...]) -> object:
    """Make a plugin. This runs without anything of this module."""
    import importlib

    try:
        return getattr(importlib.import_module(module), name)(*state)
    except Exception:  # noqa: BLE001 - whatever is the matter with hiwater there, the worker must start
        module, _, name = base.partition(":")
        return getattr(importlib.import_module(module), name)()


def _by_value(function: Any) -> Any:
    """A copy of a function that cloudpickle sends with its code, because it seems to be the main module's."""
    copy = types.FunctionType(function.__code__, {"__builtins__": builtins}, function.__name__)
    copy.__module__ = "__main__"
    copy.__qualname__ = f"hiwater_{function.__name__}"
    copy.__name__ = copy.__qualname__
    return copy
