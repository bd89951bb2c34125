"""The committed baseline of this repository, which `.ci/run` compares with: it has every program, and notices a
change of one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hiwater.analysis import baseline
from recording import needs_engine

ROOT = Path(__file__).parents[2]


def test_every_program_has_an_entry_and_every_entry_a_program() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hiwater"]["check"]
    entries = baseline.read(ROOT / settings["baseline"]).entries
    assert set(settings["programs"]) == set(entries)
    assert len(entries) == 5
    for entry in entries.values():
        assert entry.tolerance is not None
        assert entry.tolerance.relative is not None
        assert entry.tolerance.relative <= 0.04
    scripts = {ROOT / script for script in settings["programs"].values()}
    assert scripts == set((ROOT / "tests" / "check" / "programs").glob("*.py"))


@needs_engine
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the baseline's figures hold for CPython 3.11 to 3.13")
@pytest.mark.parametrize(("more", "code"), [("", 0), ("more = [str(number) for number in range(3_000)]\n", 1)])
def test_a_few_thousand_objects_more_are_noticed(tmp_path: Path, more: str, code: int) -> None:
    for file in ("pyproject.toml", "tests/check/memory.json", "tests/check/programs/records.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    program = tmp_path / "tests/check/programs/records.py"
    program.write_text(
        program.read_text("utf-8").replace("held = table(20_000)\n", f"held = table(20_000)\n{more}"), "utf-8"
    )
    command = [sys.executable, "-m", "hiwater", "check", "--program", "records"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("records uses more memory than is allowed" in done.stdout) == bool(code)
