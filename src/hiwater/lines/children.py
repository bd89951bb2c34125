"""How children of a process whose lines are measured know `profile`.

A forked child has its parent's. Another Python process is told by `HIWATER_LINES` in its environment, which
`hiwater.pth` or `hiwater.start` in site-packages reads when the interpreter starts.
"""

from __future__ import annotations

import builtins
import os

from hiwater._os import trust
from hiwater._os.process_identity import is_own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENTRY = "HIWATER_LINES"
_UNMEASURED = "unmeasured"
_RESIDENT, _HEAP_ALONE = "resident", "heap"


def tell(folder: str, *, resident: bool) -> None:
    """Have the Python processes that this one starts measure their lines, and leave their figures in `folder`."""
    os.environ[ENTRY] = f"{_RESIDENT if resident else _HEAP_ALONE}:{folder}"


def tell_unmeasured() -> None:
    """Have the Python processes that this one starts know `profile`, which then does nothing."""
    os.environ[ENTRY] = _UNMEASURED


def start() -> None:
    """Make `profile` a builtin in this process, as its parent's entry in the environment says."""
    how, _, folder = os.environ.get(ENTRY, "").partition(":")
    if not is_own_command():
        is_measured = how != _UNMEASURED and trust.is_own_folder(folder)
        builtins.profile = _MeasuredProfile(folder, resident=how == _RESIDENT) if is_measured else _unmeasured  # type: ignore[attr-defined]


def _unmeasured(function: Any = None, /, **_: object) -> Any:
    return function if function is not None else _unmeasured_with


def _unmeasured_with(function: Any) -> Any:
    return function


class _MeasuredProfile:
    """`hiwater.profile`, which is imported when the program uses it."""

    def __init__(self, folder: str, *, resident: bool) -> None:
        self._folder = folder
        self._resident = resident

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from hiwater.lines import decorator

        decorator.session().join(self._folder, resident=self._resident)
        builtins.profile = decorator.profile  # type: ignore[attr-defined]
        return decorator.profile(*arguments, **options)
