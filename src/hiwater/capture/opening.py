"""From a path to decoded tables: one capture, or all that a file holds."""

from __future__ import annotations

import os

from hiwater.capture import container, histories, process
from hiwater.capture.reader import Contents
from hiwater.capture.tables import Tables
from hiwater.errors import CorruptCapture

_LIVE_TRIES = 5


def read(path: str | os.PathLike[str]) -> Tables:
    """Read a capture; one that is still being written is read again if it changed meanwhile. `all.hiw/NAME` is one of a merged capture.

    Raises BadRequest for a merged capture of more than one, MissingCapture, ForeignFile, NewerCapture, TruncatedCapture or CorruptCapture.
    """
    for _ in range(_LIVE_TRIES - 1):
        try:
            return _decoded(container.read_contents(path))
        except CorruptCapture:
            continue
    return _decoded(container.read_contents(path))


def read_all(path: str | os.PathLike[str]) -> list[Tables]:
    """Read the capture at `path`, or all that a merged one holds, in its order. Raises what `read` raises."""
    if histories.is_history(path):
        return [_decoded(contents) for contents in histories.read_all(path)]
    if not container.is_container(path):
        return [read(path)]
    return [_decoded(container.read_member(path, member)) for member in container.members(path)]


def _decoded(contents: Contents) -> Tables:
    return Tables(contents, is_alive=process.is_being_written(contents.header))
