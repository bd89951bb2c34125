"""Call paths of `report --format json` and `diff --format json`, read from their tables as any reader would."""

from __future__ import annotations

from typing import Any


def frames_of(said: Any, node: int | None) -> list[dict[str, Any]]:
    """The frames of a call path, root first."""
    path = []
    while node is not None:
        path.append(said["frames"][said["nodes"][node]["frame"]])
        node = said["nodes"][node]["parent"]
    return path[::-1]


def tuples_of(said: Any, node: int | None) -> list[tuple[str, str, int]]:
    """The same as (function, file, line)."""
    return [(frame["function"], frame["file"], frame["line"]) for frame in frames_of(said, node)]
