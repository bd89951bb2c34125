"""Where the capture's disk is full, or can map no files: the program is not disturbed, and what can be kept is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import compiled
import hiwater
from children import run_hiwater
from recording import child_environment, needs_engine
from waiting import wait_until

pytestmark = needs_engine

# Each turn is a function of its own, so that the call tree, and with it the capture, grows: a MiB for about 8,000 of
# them.
GROWING = """
import sys, time
kept = []
for turn in range(int(sys.argv[1])):
    exec(f"def made_{turn}(n):\\n    return [bytes(n), {{}}]\\nkept.append(made_{turn}({turn} + 100))", {"kept": kept})
print("done", len(kept))
time.sleep(float(sys.argv[2]))
raise SystemExit(5)
"""
STOPPED = "the capture cannot grow: the disk is full or the file is gone"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder to mount a small file system on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    if os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


def mount(folder: Path, kib: int) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")


def run(
    capture: Path, turns: int, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_hiwater("run", *options, "-o", capture, "-c", GROWING, turns, "0", environment=environment)


@pytest.mark.parametrize("kib", [2400, 2900, 3400, 4500])
def test_a_disk_that_fills_while_recording(disk: Path, kib: int) -> None:
    """At several sizes: which of the capture's tables meets the end of the disk differs."""
    mount(disk, kib)

    done = run(disk / "a.hiw", 20_000, "-q")

    assert (done.returncode, done.stdout) == (5, "done 20000\n")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"hiwater: warning: recording stopped before the program did: {STOPPED}; ")
    assert "events were lost" in done.stderr
    capture = hiwater.open(disk / "a.hiw")
    capture.check()
    assert capture.lost_events > 1000
    assert capture.process.stop_reason == STOPPED
    assert (capture.process.ended, capture.process.exit_code) == ("exit", 5)
    assert capture.peak.allocated_bytes > 0
    assert capture.peak.allocated_bytes == sum(stack.bytes for stack in capture.peak.stacks)


def test_a_disk_that_is_full_from_the_start(disk: Path) -> None:
    mount(disk, 200)

    done = run(disk / "a.hiw", 10)

    assert (done.returncode, done.stdout) == (125, "")
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(disk.iterdir()) == []


def test_a_full_disk_stops_a_snapshot_and_not_the_recording(disk: Path, tmp_path: Path) -> None:
    mount(disk, 200)

    with hiwater.record(tmp_path / "a.hiw") as recorder:
        held = bytearray(3_000_000)
        with pytest.raises(hiwater.HiwaterError, match="No space left"):
            recorder.snapshot(disk / "b.hiw")
    assert len(held) == 3_000_000
    assert list(disk.iterdir()) == []
    assert hiwater.open(tmp_path / "a.hiw").peak.allocated_bytes > 3_000_000


def refusing() -> dict[str, str]:
    return {"LD_PRELOAD": str(compiled.library("refuses_mapping"))}


def test_a_file_system_that_maps_nothing(disk: Path) -> None:
    done = run(disk / "a.hiw", 20_000, "-q", environment=refusing())

    assert (done.returncode, done.stdout) == (5, "done 20000\n")
    assert len(done.stderr.splitlines()) == 1
    assert "cannot map files" in done.stderr
    assert "-o" in done.stderr
    capture = hiwater.open(disk / "a.hiw")
    capture.check()
    assert (capture.lost_events, capture.process.stop_reason) == (0, None)
    assert (capture.process.ended, capture.process.exit_code) == ("exit", 5)
    assert capture.peak.allocated_bytes > 100_000_000
    assert [path.name for path in disk.iterdir()] == ["a.hiw"]


@pytest.mark.parametrize(
    "leaving", ["import os; os._exit(3)", "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 3'])"]
)
def test_what_is_kept_in_memory_is_written_however_the_program_leaves(disk: Path, leaving: str) -> None:
    code = f"held = bytearray(5_000_000)\n{leaving}"
    done = run_hiwater("run", "-q", "-o", disk / "a.hiw", "-c", code, environment=refusing())

    assert done.returncode == 3
    capture = hiwater.open(disk / "a.hiw")
    capture.check()
    assert capture.process.ended == "exit"
    assert capture.peak.allocated_bytes > 5_000_000


def test_what_is_kept_in_memory_is_written_in_between(disk: Path) -> None:
    """A program that is killed leaves the last copy, which is whole."""
    path = disk / "a.hiw"
    words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(path), "-c", GROWING, "3000", "60"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=child_environment(refusing())) as program:
        try:
            wait_until(
                lambda: path.exists() and path.stat().st_size and hiwater.open(path).peak.allocated_bytes > 5_000_000
            )
        finally:
            program.kill()
    capture = hiwater.open(path)
    capture.check()
    assert capture.process.ended == "killed"
    assert capture.peak.allocated_bytes > 5_000_000


def test_a_full_disk_that_maps_nothing_is_told_at_the_end(disk: Path) -> None:
    mount(disk, 1300)

    done = run(disk / "a.hiw", 20_000, "-q", environment=refusing())

    assert (done.returncode, done.stdout) == (5, "done 20000\n")
    first, second = done.stderr.splitlines()
    assert "cannot map files" in first
    assert "the capture could not be written: No space left on device" in second
