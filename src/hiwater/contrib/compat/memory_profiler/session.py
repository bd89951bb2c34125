"""The state of `python -m memory_profiler` in this program: its profiler, and the script as on the command line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

profiler: Callable[..., Any] | None = None
given_path: tuple[str, str] | None = None  # absolute, and as on the command line


def shown_path(path: str) -> str:
    """The path of a source file in reports: that of the script as on the command line, all others unchanged."""
    return given_path[1] if given_path is not None and given_path[0] == path else path
