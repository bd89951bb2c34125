"""Whether this program runs under `python -m memory_profiler`, and its profiler then."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

profiler: Callable[..., Any] | None = None
