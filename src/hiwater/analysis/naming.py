"""The names of functions, modules and libraries, and where a file is in its project, from its path alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import normpath

_PACKAGES = re.compile(r"^(.*?/(?:site|dist)-packages)/(.*)$")
_STANDARD_LIBRARY = re.compile(r"^(.*?/lib(?:64)?/python3(?:\.\d+t?)?)/(.*)$")
_MAPPED_BY = "mapped by "  # the label of native/mappings/mapping_accounts.h
_COMPREHENSION = re.compile(r"(?:(?:^|\.)(?:<locals>\.)?<(?:list|dict|set)comp>)+$")
_FROZEN = re.compile(r"^<frozen (.+)>$")


def mapping_library(file: str) -> str:
    """The library that mapped memory itself, from what its label has in the place of a file; "" for other files and
    labels."""
    return file.removeprefix(_MAPPED_BY) if file.startswith(_MAPPED_BY) else ""


def function_of(name: str) -> str:
    """The function around a comprehension; other names are returned unchanged. Up to Python 3.11 a comprehension was
    a function of its own, since then it is part of the one around it."""
    return _COMPREHENSION.sub("", name) or "<module>"


def place_of(file: str, roots: Sequence[str]) -> str:
    """The path of a file within its project, wherever that was checked out or installed: relative to site-packages,
    to the standard library, or to the longest of the folders `roots` that contains it. Other paths are returned
    unchanged."""
    for pattern, name in ((_PACKAGES, "site-packages"), (_STANDARD_LIBRARY, "lib/python")):
        inside = pattern.match(file)
        if inside:
            return f"{name}/{inside[2]}"
    folders = [folder.rstrip("/") + "/" for folder in roots if folder.strip("/")]
    inside_of = [folder for folder in folders if file.startswith(folder)]
    return file[len(max(inside_of, key=len)) :] if inside_of else file


def module_of(file: str, cwd: str) -> str:
    """Dotted module name for a file, as near as its path tells; "" for no file, the file itself for `<string>` and
    the like."""
    frozen = _FROZEN.match(file)
    if frozen:
        return frozen[1]
    if not file or file.startswith("<"):
        return file
    if "/../" in file:  # as a library is loaded by its place beside the one that needs it
        file = normpath(file)
    inside = _PACKAGES.match(file) or _STANDARD_LIBRARY.match(file)
    if inside:
        path = inside[2].removeprefix("lib-dynload/")
    elif cwd and file.startswith(cwd.rstrip("/") + "/"):
        path = file[len(cwd.rstrip("/")) + 1 :]
    else:
        path = file.rsplit("/", 1)[-1]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts and parts[-1].endswith(".py"):
        parts[-1] = parts[-1][:-3]
        if parts[-1] == "__init__" and len(parts) > 1:
            parts.pop()
    return ".".join(parts)
