"""Growth that is known and accepted: what hiwater knows by name, and what a project's file lists with a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hiwater.capture.paths import Frame
from hiwater.errors import BadRequest

_KEYS = {"function", "file", "reason"}


@dataclass(frozen=True, slots=True)
class Suppression:
    """Call paths with a frame whose function and file match these globs are no leaks, for this reason. A file glob
    without a leading `/` matches the end of a path, from a folder's name on."""

    reason: str
    function: str = "*"
    file: str = "*"
    is_built_in: bool = False

    def matches(self, frames: Sequence[Frame]) -> bool:
        return any(self._matches(frame) for frame in frames)

    def _matches(self, frame: Frame) -> bool:
        if not fnmatchcase(frame.function, self.function):
            return False
        return fnmatchcase(frame.file, self.file) or fnmatchcase(frame.file, f"*/{self.file}")


def _known(reason: str, file: str, function: str = "*") -> Suppression:
    return Suppression(reason, function, file, is_built_in=True)


KNOWN = (
    _known("modules are loaded once and kept", "<frozen importlib*"),
    _known("linecache keeps the source of files that tracebacks show", "linecache.py"),
    _known("re keeps up to 512 compiled patterns", "re/__init__.py", "_compile*"),
    _known("fnmatch keeps compiled patterns", "fnmatch.py"),
    _known("warnings keeps a registry of what was shown", "warnings.py"),
    _known("_strptime keeps compiled formats", "_strptime.py"),
    _known("tokenize keeps compiled patterns", "tokenize.py", "_compile"),
    _known("struct, encodings and codecs are looked up once and kept", "encodings/__init__.py"),
    _known("typing keeps parameterised types", "typing.py", "_tp_cache*"),
    _known("abc keeps results of isinstance()", "<frozen abc>"),
    _known("dataclasses compiles methods once", "dataclasses.py", "_create_fn*"),
)
"""Caches of the standard library that grow while a program meets new modules, files or patterns."""


def read(path: str) -> list[Suppression]:
    """The suppressions in a TOML file, tables `[[suppress]]`. Raises BadRequest, with the table at fault."""
    remedy = 'write [[suppress]] tables with function = "glob", file = "glob" and reason = "…"'
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"the suppressions {path!r} cannot be read ({error.strerror})", "check the path") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the suppressions {path!r} are not TOML ({error})", remedy) from error
    tables = content.get("suppress")
    if not isinstance(tables, list) or set(content) != {"suppress"}:
        raise BadRequest(f"the suppressions {path!r} have something other than [[suppress]] tables", remedy)
    return [_suppression(path, number, table, remedy) for number, table in enumerate(tables, 1)]


def _suppression(path: str, number: int, table: object, remedy: str) -> Suppression:
    where = f"[[suppress]] number {number} in {path!r}"
    if not isinstance(table, dict) or any(not isinstance(value, str) for value in table.values()):
        raise BadRequest(f"{where} has a value that is not text", remedy)
    if not set(table) <= _KEYS:
        raise BadRequest(f"{where} has the unknown key {min(set(table) - _KEYS)!r}", remedy)
    if not table.get("reason", "").strip():
        raise BadRequest(f"{where} has no reason", "say in `reason` why this growth is accepted")
    if not set(table) & {"function", "file"}:
        raise BadRequest(f"{where} has neither a function nor a file", remedy)
    return Suppression(**table)
