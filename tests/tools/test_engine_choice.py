"""The build makes the engine where the engine works. Elsewhere it needs no compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake configures the build")
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def configured(folder: Path, python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder / "build", f"-DPython_EXECUTABLE={python}"],
        capture_output=True, text=True, check=False, timeout=300, env=os.environ | NO_COMPILER | environment,
    )  # fmt: skip


@pytest.mark.parametrize("system", ["linux-aarch64", "linux-i686", "macosx-14.0-arm64", "win-amd64"])
def test_another_system_gets_no_engine_and_needs_no_compiler(tmp_path: Path, system: str) -> None:
    done = configured(tmp_path, sys.executable, _PYTHON_HOST_PLATFORM=system)
    assert done.returncode == 0, done.stderr
    assert f"this is {system}" in " ".join(done.stderr.split())
    assert "HIWATER_ENGINE:BOOL=OFF" in (tmp_path / "build" / "CMakeCache.txt").read_text()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("platform.libc_ver = lambda: ('', '')", "this is linux-x86_64"),
        ("sys.abiflags = 't'", "this is linux-x86_64 free-threaded"),
    ],
    ids=["musl", "free-threaded"],
)
def test_nor_does_another_c_library_or_interpreter(tmp_path: Path, said: str, why: str) -> None:
    """What the interpreter says of itself is made up; there is none of these here."""
    (tmp_path / "sitecustomize.py").write_text(f"import platform, sys\n{said}\n")
    done = configured(tmp_path, sys.executable, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert why in " ".join(done.stderr.split())


def test_here_it_needs_one(tmp_path: Path) -> None:
    done = configured(tmp_path, sys.executable, _PYTHON_HOST_PLATFORM="linux-x86_64")
    assert done.returncode != 0
    assert "compiler" in done.stderr
