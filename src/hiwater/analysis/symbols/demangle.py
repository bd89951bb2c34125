"""Names of C++ and Rust as their programmers wrote them. By `c++filt`, which knows both, or the C++ library of this
machine, which knows C++; without either, names stay as they are in the file."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence

_MANGLED = re.compile(r"_[ZR][A-Za-z0-9_.$]+")
_PART = re.compile(r"(?:\.(?:cold|part|constprop|isra|lto_priv|localalias|llvm)(?:\.\d+)*)+$")
"""What a compiler appends to the name of a function that it has split or copied."""
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
_LONGEST, _SECONDS = 2000, 20


def demangled(names: Sequence[str]) -> list[str]:
    """These names, in their order."""
    names = [_PART.sub("", name) for name in names]
    wanted = sorted({name for name in names if len(name) <= _LONGEST and _MANGLED.fullmatch(name)})
    found = dict(zip(wanted, _by_program(wanted) or _by_library(wanted) or wanted, strict=True)) if wanted else {}
    return [_RUST_HASH.sub("", found.get(name, name)) for name in names]


def _by_program(names: Sequence[str]) -> list[str] | None:
    program = shutil.which("c++filt") or shutil.which("llvm-cxxfilt")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program], input="\n".join(names) + "\n", capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    lines = done.stdout.splitlines()
    return lines if len(lines) == len(names) else None


def _by_library(names: Sequence[str]) -> list[str] | None:
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    shown = []
    for name in names:
        text = demangle(name.encode(), None, None, None) if name.startswith("_Z") else None
        shown.append(ctypes.string_at(text).decode("utf-8", "replace") if text else name)
        free(text)
    return shown
