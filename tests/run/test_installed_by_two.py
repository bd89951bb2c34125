"""Two installations from one checkout at the same time are both whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core", reason="builds the package")
pytest.importorskip("pip")

TREE = Path(__file__).resolve().parents[2]
PARTS = ["bin/hiwater", "hiwater.pth", "hiwater.start", "_hiwater_startup.py", "hiwater/__init__.py"]


def test_none_of_them_lacks_a_part(tmp_path: Path) -> None:
    # Without the engine: that takes a minute. What is left out was put there by the same step.
    words = ["--no-build-isolation", "--no-deps", "--no-index", "-C", "cmake.define.HIWATER_ENGINE=OFF", str(TREE)]
    places = [tmp_path / "first", tmp_path / "second"]
    environment = {**os.environ, "SETUPTOOLS_USE_DISTUTILS": "stdlib"}  # CMake asks by distutils: a quarter of the time
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *words, "--target"]
    pips = [subprocess.Popen([*command, place], cwd=tmp_path, env=environment) for place in places]
    assert [pip.wait(timeout=300) for pip in pips] == [0, 0]
    assert [part for place in places for part in PARTS if not (place / part).exists()] == []
