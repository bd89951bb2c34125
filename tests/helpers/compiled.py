"""Compiles the test libraries of `extensions/`, once a session, with the compilers of this machine."""

import atexit
import functools
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from places import EXTENSIONS

C = ["cc", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-builtin"]
CXX = ["c++", "-std=c++20", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-builtin"]
FORTRAN = ["gfortran", "-O1", "-g", "-fPIC", "-shared"]

# The ways a library can call malloc: where its call slot lies, whether it is filled already, whether it can be written.
LINKINGS = {
    "heap_lazy": ["-Wl,-z,lazy"],
    "heap_now": ["-Wl,-z,now", "-Wl,-z,relro"],
    "heap_noplt": ["-fno-plt", "-Wl,-z,now", "-Wl,-z,relro"],
    "heap_packed": ["-Wl,-z,now", "-Wl,-z,pack-relative-relocs"],
    "heap_sysv": ["-Wl,-z,lazy", "-Wl,--hash-style=sysv"],
}

# Doubles of libraries that are loaded by name: once one of these is loaded from its path, the dynamic linker takes it
# for the name.
SONAMES = {"nvml": "libnvidia-ml.so.1", "cuda_driver": "libcuda.so.1"}


@functools.cache
def libraries() -> Path:
    """The folder the compiled libraries lie in."""
    folder = Path(tempfile.mkdtemp(prefix="hiwater-libraries-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def library(name: str) -> Path:
    """Compiles one library by its name in `extensions/` (or in LINKINGS) and says where it is."""
    target = libraries() / f"{name}.so"
    command = _command(name)
    done = subprocess.run([*command, "-o", target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"
    return target


def _command(name: str) -> list[str | Path]:
    if name in LINKINGS:
        return [*C, EXTENSIONS / "heap.c", *LINKINGS[name]]
    if name == "arrays":
        return [*FORTRAN, EXTENSIONS / "arrays.f90", "-J", libraries()]
    if name == "native_frames":
        flags = ["-O2", "-fomit-frame-pointer", "-Wno-infinite-recursion"]  # one ends in longjmp
        return [*CXX, *flags, EXTENSIONS / f"{name}.cpp"]
    if name in ("objects", "farewell", "doors"):
        return [*CXX, EXTENSIONS / f"{name}.cpp"]
    if name in ("forgetful", "lines", "moving_states", "returning", "stepped"):
        return [*C, EXTENSIONS / f"{name}.c", "-I", sysconfig.get_path("include")]
    if name in SONAMES:
        return [*C, EXTENSIONS / f"{name}.c", f"-Wl,-soname,{SONAMES[name]}"]
    return [*C, EXTENSIONS / f"{name}.c", "-ldl"]


def has_fortran() -> bool:
    return shutil.which("gfortran") is not None
