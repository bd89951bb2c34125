"""The build makes the engine where the engine works. Elsewhere it needs no compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from children import run_command
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake configures the build")
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
# CMake asks the interpreter by distutils, in whose place setuptools puts its own: most of the time.
STANDARD = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"}


def configured(folder: Path, python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        ["cmake", "-S", ROOT, "-B", folder / "build", f"-DPython_EXECUTABLE={python}"],
        env=os.environ | NO_COMPILER | STANDARD | environment,
    )


@pytest.mark.parametrize("system", ["linux-riscv64", "linux-i686", "macosx-14.0-arm64", "win-amd64"])
def test_another_system_gets_no_engine_and_needs_no_compiler(tmp_path: Path, system: str) -> None:
    done = configured(tmp_path, sys.executable, _PYTHON_HOST_PLATFORM=system)
    assert done.returncode == 0, done.stderr
    assert f"this is {system}" in " ".join(done.stderr.split())
    assert "HIWATER_ENGINE:BOOL=OFF" in (tmp_path / "build" / "CMakeCache.txt").read_text()


BY_ITSELF = "import sys, sysconfig; sysconfig.get_config_vars()['HOST_GNU_TYPE'] = {!r}; sys.abiflags = {!r}"


def said_by(folder: Path, machine: str, flags: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """What comes of what the interpreter says of itself, which is made up: there is none of these here."""
    (folder / "sitecustomize.py").write_text(BY_ITSELF.format(machine, flags))
    return configured(folder, sys.executable, PYTHONPATH=str(folder), **environment)


@pytest.mark.parametrize(
    ("machine", "flags"),
    [("x86_64-pc-linux-android", ""), ("x86_64-pc-linux-gnux32", ""), ("x86_64-pc-linux-gnu", "t")],
    ids=["Android", "x32", "free-threaded"],
)
def test_nor_does_another_c_library_or_interpreter(tmp_path: Path, machine: str, flags: str) -> None:
    done = said_by(tmp_path, machine, flags)
    assert done.returncode == 0, done.stderr
    assert f"this is linux-x86_64 {machine}{' free-threaded' if flags else ''}" in " ".join(done.stderr.split())


@pytest.mark.parametrize("machine", ["x86_64-pc-linux-gnu", "x86_64-alpine-linux-musl", "x86_64-conda-linux-gnu"])
def test_here_it_needs_one(tmp_path: Path, machine: str) -> None:
    done = said_by(tmp_path, machine)
    assert done.returncode != 0
    assert "compiler" in done.stderr


def test_on_aarch64_too(tmp_path: Path) -> None:
    done = said_by(tmp_path, "aarch64-unknown-linux-gnu", _PYTHON_HOST_PLATFORM="linux-aarch64")
    assert done.returncode != 0
    assert "compiler" in done.stderr
