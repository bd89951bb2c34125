"""Files that change only as a whole."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO


@contextmanager
def replacing(path: Path, *, is_private: bool = False) -> Iterator[TextIO]:
    """A new file next to `path` that replaces it at the end, or is removed after an exception. Where the user names
    the file, links are followed and devices are written directly. One `is_private` that hiwater names is its owner's
    alone, and takes the place of whatever somebody put there."""
    if not is_private and path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        return
    target = path if is_private else path.resolve()  # a link stays a link
    with whole_file(target, None if is_private else _mode_of(target)) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")
        yield stream
        stream.flush()


@contextmanager
def whole_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A new file, its owner's alone unless `mode` says otherwise. At the end it takes the place of whatever is at
    `path`; after an exception it is removed."""
    descriptor, name = tempfile.mkstemp(prefix=".hiwater-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            if mode is not None:
                _set_mode(file.fileno(), name, mode)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _set_mode(descriptor: int, name: str, mode: int) -> None:
    """Of what is open: in a folder that others may write to, the name may belong to a link by now."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)
    else:
        os.chmod(name, mode)


def _mode_of(path: Path) -> int:
    """The mode of the file, or that of a new file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
