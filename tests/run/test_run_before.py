"""The next run in the same place tells how the last one ended, if it was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

PROGRAM = """\
import os, signal, sys, time
kept = []
try:
    while sys.argv[1] == "near":
        kept.append(bytearray(4_000_000))
        time.sleep(0.002)
except MemoryError:
    pass
time.sleep(0.1)  # the recorder looks at the limits every 10 ms
if sys.argv[1] != "ends":
    os.kill(os.getpid(), signal.SIGKILL)
"""
TOLD = re.compile(r"hiwater: the run before \(pid (\d+), \d\d:\d\d\) was killed (.*): hiwater report (.*)\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "etl.py").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, how: str, *options: object) -> subprocess.CompletedProcess[str]:
    return run_hiwater("run", "--limit", "300MiB", *options, "etl.py", how, folder=folder)


def test_a_killed_run_is_told_once(folder: Path) -> None:
    assert run(folder, "near").returncode == -signal.SIGKILL
    (killed,) = folder.glob("*.hiw")
    (folder / "hiwater-other.py.1.hiw").write_bytes(killed.read_bytes())  # of another program

    done = run(folder, "ends")

    found = TOLD.match(done.stderr)
    assert found is not None, done.stderr
    size = re.fullmatch(r"at (\d+\.\d) MiB of 300\.0 MiB", found[2])
    assert size is not None, found[2]
    assert 270 <= float(size[1]) <= 300
    assert found[3] == str(killed)
    assert hiwater.open(killed).process.pid == int(found[1])
    assert "run before" not in run(folder, "ends").stderr


def test_a_run_that_was_killed_far_from_limits(folder: Path) -> None:
    run(folder, "killed")

    found = TOLD.match(run(folder, "ends").stderr)

    assert found is not None
    assert re.fullmatch(r"with a resident peak of \d+\.\d MiB", found[2])


def test_the_capture_of_a_killed_run_keeps_its_place_under_another_name(folder: Path) -> None:
    run(folder, "killed", "-o", "run.hiw")
    pid = hiwater.open(folder / "run.hiw").process.pid

    found = TOLD.match(run(folder, "ends", "-o", "run.hiw").stderr)

    assert found is not None
    assert (found[1], found[3]) == (str(pid), str(folder / "run.before.hiw"))
    assert hiwater.open(folder / "run.before.hiw").process.pid == pid
    assert hiwater.open(folder / "run.hiw").process.ended == "exit"
    run(folder, "ends", "-o", "run.hiw")
    assert sorted(path.name for path in folder.glob("*.hiw")) == ["run.before.hiw", "run.hiw"]


def test_the_captures_of_children_stay_with_that_of_a_killed_run(folder: Path) -> None:
    (folder / "etl.py").write_text(
        "import os, signal, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'x = bytearray(9_000_000)'])\n"
        "if sys.argv[1] == 'killed': os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        run(folder, "killed", "-o", "run.hiw")
        run(folder, "ends", "-o", "run.hiw")
        pids = []
        for name in ("run.hiw", "run.before.hiw"):
            found = hiwater.open_run(folder / name)
            assert (len(found.captures), found.captures[1].peak.allocated_bytes >= 9_000_000) == (2, True)
            pids.append(found.captures[1].process.pid)
        assert pids[0] != pids[1]


def test_what_is_no_capture_is_passed_over(folder: Path) -> None:
    for number in range(40):
        (folder / f"hiwater-etl.py.{number}.hiw").write_bytes(b"x" * number * 300)
    os.mkfifo(folder / "hiwater-etl.py.99.hiw")
    assert "run before" not in run(folder, "ends").stderr
