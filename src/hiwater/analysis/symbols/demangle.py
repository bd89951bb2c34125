"""Names of C++, Rust, Fortran and Cython as their programmers wrote them. Those of C++ and Rust by `c++filt`, which
knows both, or the C++ library of this machine, which knows C++; without either, they stay as they are in the file."""

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
_RUST_CRATE = re.compile(r"(?<=\w)\[[0-9a-f]{1,16}\](?=::)")
"""What tells two versions of a crate apart."""
_FORTRAN = re.compile(r"__(?P<module>[a-z]\w*?)_MOD_(?P<function>\w+)")
"""A procedure of a module, as gfortran calls it."""
_CYTHON = re.compile(
    r"(?:__pyx_fuse_\d+)*__pyx_(?:pw|pf|f|gb|mdef|tp_new|tp_dealloc|getprop|setprop|specialmethod)_(?=\d)"
)
_LONGEST, _SECONDS = 2000, 20


def demangled(names: Sequence[str]) -> list[str]:
    """These names, in their order."""
    names = [_PART.sub("", name) for name in names]
    wanted = sorted({name for name in names if len(name) <= _LONGEST and _MANGLED.fullmatch(name)})
    found = dict(zip(wanted, _by_program(wanted) or _by_library(wanted) or wanted, strict=True)) if wanted else {}
    return [_readable(_without_hashes(name, found.get(name, "") or name)) for name in names]


def _without_hashes(mangled: str, name: str) -> str:
    return _RUST_CRATE.sub("", name) if mangled.startswith("_R") else _RUST_HASH.sub("", name)


def _readable(name: str) -> str:
    """What a compiler of Fortran or Cython has put together is taken apart; other names stay."""
    if fortran := _FORTRAN.fullmatch(name):
        return f"{fortran['module']}::{fortran['function']}"
    if cython := _CYTHON.match(name):
        # Compiled as C++, it has its parameters behind it.
        return _of_cython(name[cython.end() :].partition("(")[0]) or name
    return name


def _of_cython(rest: str) -> str:
    """The dotted name in `5pandas_5_libs_7hashing_3hash_me`: each part of the module and its classes has its length in
    front, and the last one a number that tells functions of one name apart, or nothing."""
    parts = list[str]()
    while length := re.match(r"[1-9]\d{0,3}", rest):
        end = length.end() + int(length[0])
        if rest[end : end + 1] != "_":
            break
        parts.append(rest[length.end() : end])
        rest = rest[end + 1 :]
    return ".".join([*parts, rest.lstrip("0123456789")]) if parts and rest else ""


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
