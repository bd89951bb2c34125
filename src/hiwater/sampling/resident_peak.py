"""The most that was resident during a block, by the kernel's own mark.

There is one mark a process, and whoever starts it anew takes it from whoever reads it later. So a block is a scope like any
other: scopes and blocks that nest or overlap share each reading, and a recording hears of each mark that is wiped out.
"""

from __future__ import annotations

from hiwater.errors import MeterUnavailable
from hiwater.scopes.manager import SCOPE_MANAGER, Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class ResidentPeak:
    """A block whose resident peak is asked for; without `is_wanted`, one that measures nothing."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._scope: Scope | None = Scope("memory_usage", ("resident",)) if is_wanted else None

    def so_far(self) -> int:
        """The most that was resident since the block began, in bytes; 0 where that is not known."""
        figures = SCOPE_MANAGER.look(self._scope).figures if self._scope is not None else []
        return figures[0].peak if figures else 0

    def __enter__(self) -> Self:
        if self._scope is not None:
            try:
                SCOPE_MANAGER.enter(self._scope)
            except MeterUnavailable:
                self._scope = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._scope is not None:
            SCOPE_MANAGER.exit(self._scope)
