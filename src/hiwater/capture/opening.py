"""From a path to the decoded tables of one capture."""

from __future__ import annotations

import os

from hiwater.capture import container, process
from hiwater.capture.reader import Contents
from hiwater.capture.tables import Tables
from hiwater.errors import CorruptCapture, ForeignFile

_LIVE_TRIES = 5


def read(path: str | os.PathLike[str]) -> Tables:
    """Read a capture; one that is still being written is read again if it changed meanwhile. `all.hiw/NAME` is one of a
    merged capture.

    Raises BadRequest for a merged capture of more than one, MissingCapture, ForeignFile, IncompatibleCapture,
    TruncatedCapture or CorruptCapture.
    """
    if os.path.isdir(path):
        raise ForeignFile(
            f"{os.fspath(path)!r} is a folder", "give one of the captures in it, or use `hiwater.open_run()`"
        )
    for _ in range(_LIVE_TRIES - 1):
        try:
            return decoded(container.read_contents(path))
        except CorruptCapture:
            continue
    return decoded(container.read_contents(path))


def decoded(contents: Contents) -> Tables:
    return Tables(contents, is_alive=process.is_being_written(contents.header))
