"""Snapshots of a recording that continues: from inside, and from outside by process number or path."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

import hiwater
import waiting_program
from children import run_hiwater
from hiwater.capture import copying
from hiwater.errors import NotRecording
from recording import needs_engine

pytestmark = needs_engine

BUSY = """
import random, threading
kept = {}
def work(number):
    chance = random.Random(number)
    mine = kept.setdefault(number, {})
    while True:
        mine[chance.randrange(3000)] = bytearray(chance.randrange(10, 3000))
        if chance.random() < 0.0002: mine.clear()
print("ready", flush=True)
for number in range(2): threading.Thread(target=work, args=(number,), daemon=True).start()
work(9)
"""
HOLDS = "block = bytearray(5_000_000); print('ready', flush=True); input()"


def test_snapshots_of_a_busy_program_are_consistent(tmp_path: Path) -> None:
    with waiting_program.recording(tmp_path, BUSY, "-q", "-o", "run.hiw"):
        for number in range(20):
            with open(tmp_path / "run.hiw", "rb") as file:
                (tmp_path / f"{number}.hiw").write_bytes(copying.copy(file.fileno()))
    for number in range(20):
        capture = hiwater.open(tmp_path / f"{number}.hiw")
        assert capture.problems() == []
        assert capture.process.ended == "recording"  # the process has been killed; this was its state then


def test_the_verb_takes_a_number_or_a_path(tmp_path: Path) -> None:
    with waiting_program.recording(tmp_path, HOLDS, "-q", "-o", "run.hiw") as process:
        for source in (str(process.pid), "run.hiw"):
            done = run_hiwater("snapshot", source, "-o", "now.hiw", folder=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "hiwater report now.hiw" in done.stderr
            assert (tmp_path / "now.hiw").stat().st_mode & 0o777 == 0o600
            assert 5_000_000 < hiwater.open(tmp_path / "now.hiw").end.allocated_bytes < 5_500_000
        refused = run_hiwater("snapshot", "run.hiw", "-o", "run.hiw", folder=tmp_path)
        assert (refused.returncode, "is the capture itself" in refused.stderr) == (2, True)
        os.unlink(tmp_path / "run.hiw")  # the process keeps it open
        assert run_hiwater("snapshot", str(process.pid), "-o", "late.hiw", folder=tmp_path).returncode == 0
    assert hiwater.open(tmp_path / "late.hiw").problems() == []


def test_a_process_that_is_not_recorded_is_refused(tmp_path: Path) -> None:
    done = run_hiwater("snapshot", str(os.getpid()), "-o", "now.hiw", folder=tmp_path)
    assert (done.returncode, "has no recording" in done.stderr) == (2, True)
    assert run_hiwater("snapshot", "4194999", "-o", "now.hiw", folder=tmp_path).returncode == 127
    assert not (tmp_path / "now.hiw").exists()


def test_a_program_makes_snapshots_of_itself(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import hiwater
            block = bytearray(3_000_000)
            print(hiwater.snapshot())
            print(hiwater.snapshot("given.hiw"))
            more = bytearray(9_000_000)
        """)
    )
    done = run_hiwater("run", "-q", "-o", "run.hiw", "program.py", folder=tmp_path)
    assert done.stdout.split() == [str(tmp_path / "run.1.hiw"), str(tmp_path / "given.hiw")], done.stderr
    for name in ("run.1.hiw", "given.hiw"):
        capture = hiwater.open(tmp_path / name)
        assert (capture.process.ended, capture.problems()) == ("recording", [])
        assert 3_000_000 < capture.end.allocated_bytes < 9_000_000


def test_without_a_recording_there_is_no_snapshot() -> None:
    with pytest.raises(NotRecording, match="hiwater run"):
        hiwater.snapshot()


def test_a_snapshot_of_a_killed_program_is_its_capture(tmp_path: Path) -> None:
    with waiting_program.recording(tmp_path, HOLDS, "-q", "-o", "run.hiw") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert run_hiwater("snapshot", "run.hiw", "-o", "now.hiw", folder=tmp_path).returncode == 0
    capture = hiwater.open(tmp_path / "now.hiw")
    assert (capture.process.ended, capture.process.argv[0]) == ("killed", "-c")
    assert sys.version.split()[0] in capture.process.python


def test_other_threads_run_while_a_snapshot_is_written(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import sys, threading, time
            from hiwater._os import native
            steps, core = 0, native.load()
            def work():
                global steps
                while True:
                    steps += 1
                    time.sleep(0)
            sys.setswitchinterval(3600)  # a thread runs only when another one waits or releases the GIL
            threading.Thread(target=work, daemon=True).start()
            for number in range(1000):
                before = steps
                core.snapshot(f"{sys.argv[1]}/now.hiw")
                if steps > before:
                    break
            else:
                sys.exit("no other thread ran during a thousand snapshots")
        """)
    )
    done = run_hiwater("run", "-q", "-o", "run.hiw", "program.py", str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert hiwater.open(tmp_path / "now.hiw").problems() == []
