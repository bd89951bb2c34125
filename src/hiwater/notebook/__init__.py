"""hiwater in notebooks and in IPython: `%load_ext hiwater`, then `%hiwater on` and `%%hiwater`.

This package runs in the measured kernel, so it imports only the standard library, IPython and the engine. Separate
processes make reports and drawings. The names below are imported at their first use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.notebook.bands import CellTimeline, timeline
    from hiwater.notebook.figures import Cell, CellData, Memory
    from hiwater.notebook.inventory import Variable, variables
    from hiwater.notebook.logger import CellLogger

__all__ = [
    "Cell", "CellData", "CellLogger", "CellTimeline", "Memory", "Variable", "load_ipython_extension", "timeline",
    "unload_ipython_extension", "variables",
]  # fmt: skip
_HOMES = {
    **dict.fromkeys(("Cell", "CellData", "Memory"), "figures"),
    **dict.fromkeys(("CellTimeline", "timeline"), "bands"),
    **dict.fromkeys(("Variable", "variables"), "inventory"),
    "CellLogger": "logger",
}


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext hiwater`."""
    from hiwater.notebook import magics

    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext hiwater`: the logger stops, the magics stay known to IPython, as it has no way to
    forget them."""
    from hiwater.notebook import magics

    magics.unload(shell)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"hiwater.notebook.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
