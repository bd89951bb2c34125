"""The source text of lines, read from the files as they are now. One rule says of which files any report, page or view
may show source.

A capture may come from elsewhere, and it names the files: it must not make a report quote `/etc/shadow` or
`.git/config`.
"""

from __future__ import annotations

import io
import os
import site
import sysconfig
import tokenize
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Self

from hiwater._os import trust
from hiwater.capture.tables import Tables

_SUFFIXES = (".py", ".pyw", ".pyx", ".pyi")
_LARGEST_FILE_BYTES = 8 << 20
_MOST_BYTES = 64 << 20  # of all files of one report
_LONGEST_LINE = 400  # of those that are compared and not shown


class Sources:
    """Lines of source files. Each file is read once. `changed` has the names of files that are newer than the
    recording, `elsewhere` those of Python files that are there and are not shown: they lie outside the folders whose
    source may be."""

    def __init__(self, folder: str, started_unix_ns: int) -> None:
        self._folder = folder
        self._started_unix_ns = started_unix_ns
        self._files: dict[str, list[str]] = {}
        self._left_bytes = _MOST_BYTES
        self.changed: set[str] = set()
        self.elsewhere: set[str] = set()

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
        """All lines of a file, unchanged; none if they are unknown, or may not be shown."""
        lines = self._files.get(file)
        if lines is None:
            lines = self._files[file] = self._read(file)
        return lines

    def _read(self, file: str) -> list[str]:
        if not file or file.startswith("<"):
            return []
        try:
            path = os.path.realpath(os.path.join(self._folder, file))
            if not _is_below(path, _folders(self._folder)):
                if path.endswith(_SUFFIXES) and os.path.isfile(path):
                    self.elsewhere.add(file)
                return []
            with open(trust.open_regular(path), "rb") as stream:
                state = os.fstat(stream.fileno())
                if state.st_size > min(_LARGEST_FILE_BYTES, self._left_bytes):
                    return []
                content = stream.read(state.st_size)
        except (OSError, ValueError):
            # Such as a file system gone since: a report without this source text is still right.
            return []
        if not path.endswith(_SUFFIXES) and not _is_script(content):
            return []
        self._left_bytes -= len(content)
        if state.st_mtime_ns > self._started_unix_ns:
            self.changed.add(file)
        return _decode(content).splitlines()


def _folders(recorded_in: str) -> list[str]:
    """The folders below which source may be shown: the current one, that of the recording if it is this user's own,
    and those of installed packages. A recording in "/" names no folder: all files are below it."""
    found = [*_installed()]
    with suppress(OSError):
        found.append(os.getcwd())
    with suppress(OSError):
        recorded = os.path.realpath(recorded_in) if os.path.isabs(recorded_in) else "/"
        if recorded != "/" and os.stat(recorded).st_uid == trust.user_id():
            found.append(recorded)
    return found


@lru_cache(maxsize=1)
def _installed() -> frozenset[str]:
    """The folders of installed packages and of the standard library."""
    paths = sysconfig.get_paths()
    named = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return frozenset(map(os.path.realpath, [*named, *site.getsitepackages(), site.getusersitepackages()]))


def _is_below(path: str, folders: list[str]) -> bool:
    """`path` and `folders` are without links."""
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _is_script(content: bytes) -> bool:
    """Whether a file is Python's by its first line alone."""
    first = content[:256].partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


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
