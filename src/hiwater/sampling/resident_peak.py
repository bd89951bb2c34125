"""The peak of resident memory during a block, by the kernel's high-water mark.

A process has one high-water mark, and a reset affects all its readers. So a block is an ordinary scope: scopes and
blocks that nest or overlap share each reading, and a recording is told each value before a reset.
"""

from __future__ import annotations

from hiwater.errors import MeterUnavailable
from hiwater.scopes.manager import SCOPE_MANAGER
from hiwater.scopes.scope import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class ResidentPeak:
    """Measures the resident peak of a block; nothing without `is_wanted`."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._scope: Scope | None = Scope("memory_usage", ("resident",)) if is_wanted else None

    def so_far(self) -> int:
        """The peak of resident bytes since the beginning of the block; 0 if it is not known."""
        figures = SCOPE_MANAGER.result_so_far(self._scope).figures if self._scope is not None else []
        return figures[0].peak if figures else 0

    def __enter__(self) -> Self:
        if self._scope is not None:
            try:
                SCOPE_MANAGER.enter(self._scope)
            except MeterUnavailable:
                self._scope = None
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._scope is not None:
            SCOPE_MANAGER.exit(self._scope)
