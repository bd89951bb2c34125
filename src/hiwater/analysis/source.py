"""The source text of lines, read from the files as they are now. Devices and huge files are not read."""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Self

from hiwater.capture.tables import Tables

_LARGEST_FILE_BYTES = 8 << 20
_LONGEST_LINE = 400  # of those that are compared and not shown


class Sources:
    """Lines of source files. Each file is read once. `changed` has the names of files that are newer than the recording."""

    def __init__(self, folder: str, started_unix_ns: int) -> None:
        self._folder = folder
        self._started_unix_ns = started_unix_ns
        self._files: dict[str, list[str]] = {}
        self.changed: set[str] = set()

    @classmethod
    def of(cls, tables: Tables) -> Self:
        """Those of a capture; it has the text of a notebook's cells with it."""
        sources = cls(tables.facts.get("cwd", ""), tables.header["started_unix_ns"])
        sources._files = {cell.name: cell.text.splitlines() for cell in tables.cells.values()}
        return sources

    def line(self, file: str, number: int) -> str:
        """The text of a line without its indent, not yet safe to print; "" if it is unknown."""
        lines = self.lines(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def lines(self, file: str) -> list[str]:
        """All lines of a file, unchanged; none if they are unknown."""
        lines = self._files.get(file)
        if lines is None:
            lines = self._files[file] = self._read(file)
        return lines

    def _read(self, file: str) -> list[str]:
        if not file or file.startswith("<"):
            return []
        path = Path(self._folder, file)
        try:
            # Not blocking: the path comes from the recorded program and may by now be a pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            return []
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_size > _LARGEST_FILE_BYTES:
                return []
            content = os.read(descriptor, _LARGEST_FILE_BYTES)
        except OSError:  # such as a file system gone since: a report without this source text is still right
            return []
        finally:
            os.close(descriptor)
        if state.st_mtime_ns > self._started_unix_ns:
            self.changed.add(file)
        return _decode(content).splitlines()


def _decode(content: bytes) -> str:
    """The text as Python would read it. Bytes that cannot be decoded become U+FFFD."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError:
        encoding = "utf-8"
    return content.decode(encoding, "replace")


def as_recorded(tables: Tables) -> Callable[[str, int], str]:
    """A function that returns the text of a line at the time of the capture; "" if the file has changed since."""
    sources = Sources.of(tables)

    def line(file: str, number: int) -> str:
        text = sources.line(file, number)
        return "" if file in sources.changed else text[:_LONGEST_LINE]

    return line
