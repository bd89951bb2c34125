"""`hiwater doctor` says what works, and one line for each thing that does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from recording import child_environment

HAS_ENGINE = importlib.util.find_spec("hiwater._core") is not None


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return run_hiwater("doctor", *words)


def test_each_finding_is_a_line_with_its_mark() -> None:
    done = doctor()
    assert done.stderr == ""
    assert all(line[:3] in {"ok ", "no ", "   "} for line in done.stdout.splitlines())
    for name in ("engine", "resident peak", "cgroup", "interpreter", "object allocator"):
        assert any(line[3:].startswith(name) for line in done.stdout.splitlines()), name


def test_quiet_shows_only_what_does_not_work() -> None:
    assert all(line.startswith("no ") for line in doctor("-q").stdout.splitlines())


@pytest.mark.skipif(HAS_ENGINE, reason="the engine is there")
def test_without_the_engine_one_line_says_so() -> None:
    done = doctor()
    assert done.returncode == 1
    assert done.stdout.startswith("no engine")
    run = run_hiwater("run", "-c", "print(1)")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (0, "1\n", 1)


@pytest.mark.skipif(not HAS_ENGINE, reason="built without the engine")
def test_with_the_engine_it_records_to_prove_it() -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout
    assert "ok recording" in done.stdout
    assert "ok start-up file" in done.stdout


@pytest.mark.skipif(not HAS_ENGINE, reason="built without the engine")
def test_without_the_start_up_file_it_says_so(tmp_path: Path) -> None:
    """An interpreter with hiwater on its path, and without the file in its site-packages that has children record
    themselves."""
    venv.create(tmp_path / "bare", symlinks=True)
    native = [importlib.import_module(f"hiwater.{name}").__file__ for name in ("_core", "_standby")]
    (tmp_path / "hiwater").mkdir()
    for part in [*Path(hiwater.__file__).parent.iterdir(), *map(Path, native)]:
        (tmp_path / "hiwater" / part.name).symlink_to(part)
    places = [str(tmp_path), *(path for path in sys.path if "site-packages" in path)]
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-m", "hiwater", "doctor"], capture_output=True, text=True, timeout=300,
        check=False, env=child_environment({"PYTHONPATH": os.pathsep.join(places)}),
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if line[3:].startswith("start-up file"))
    assert line.startswith("no ") and "hiwater.pth, which has it do so, is not there" in line
