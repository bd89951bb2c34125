"""Whether this program runs under `python -m memory_profiler`, its profiler then, and the script as it was named there."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

profiler: Callable[..., Any] | None = None
given_path: tuple[str, str] | None = None  # absolute, and as on the command line


def shown_path(path: str) -> str:
    """The path of a source file as reports have it: the script's as it was given, all others as they are."""
    return given_path[1] if given_path is not None and given_path[0] == path else path
