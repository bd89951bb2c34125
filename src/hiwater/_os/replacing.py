"""Files that change only as a whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A new file next to `path` that replaces it at the end, or is removed after an exception. Devices are written directly."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        return
    target = path.resolve()  # a link stays a link
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        os.chmod(name, _mode_of(target))
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode_of(path: Path) -> int:
    """The mode of the file, or that of a new file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
