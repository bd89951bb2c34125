"""A program that records itself runs on when it is recorded already, and its recordings are windows of that one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from hiwater.capture.program import recorded_window
from hiwater.capture.slices import find_start
from recording import needs_engine

pytestmark = needs_engine
MIB = 1 << 20

RECORDS_ITSELF = """
import hiwater, sys

before = bytearray(10 << 20)
early = bytearray(200 << 20)
del early
with hiwater.record(sys.argv[1]) as recorder:
    assert recorder.recording
    inner = bytearray(30 << 20)
    assert recorder.summary()["peak_bytes"] >= 40 << 20
    del inner
assert not recorder.recording
summary = recorder.summary()
print(summary["path"] == sys.argv[1], summary["peak_bytes"] >> 20)
late = bytearray(90 << 20)
"""


def run(folder: Path, text: str, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text)
    done = run_hiwater("run", "-q", *options, "-o", folder / "outer.hiw", "program.py", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


def held(capture: hiwater.capture.Capture, line: int) -> int:
    """What the program's line held at the peak."""
    return sum(stack.bytes for stack in capture.peak.stacks if stack.frames[-1:] and stack.frames[-1].line == line)


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_a_program_that_records_itself_under_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, RECORDS_ITSELF, str(tmp_path / "inner.hiw"), options=options)
    assert done.stdout == "True 40\n"
    inner, outer = hiwater.open(tmp_path / "inner.hiw"), hiwater.open(tmp_path / "outer.hiw")
    for capture in (inner, outer):
        capture.check()
    # The window's own peak, with what lived before it; neither what came before it and went, nor what came after.
    assert inner.peak.name == "peak"
    assert inner.peak.allocated_bytes >> 20 == 40
    assert held(inner, 9) >> 20 == 30
    assert held(inner, 4) >> 20 == 10
    assert recorded_window(inner.tables) is not None
    start = find_start(inner.tables)
    assert start is not None and start.allocated_bytes >> 20 == 10
    assert find_start(outer.tables) is None
    assert inner.process.ended == "exit"
    assert recorded_window(outer.tables) is None
    assert outer.peak.allocated_bytes >> 20 == 210
    assert outer.process.exit_code == 0
    assert ("sampling" in done.stderr) == bool(options)


def report(path: Path) -> str:
    done = run_hiwater("report", path, "--format", "text", check=True)
    return done.stdout


def test_the_report_of_a_window_says_what_it_is(tmp_path: Path) -> None:
    run(tmp_path, RECORDS_ITSELF, str(tmp_path / "inner.hiw"))
    assert "recorded inside another recording" in report(tmp_path / "inner.hiw")
    assert "40.0 MiB" in report(tmp_path / "inner.hiw")
    assert "recorded inside another recording" not in report(tmp_path / "outer.hiw")


def allocate(mebibytes: int) -> None:
    bytearray(mebibytes << 20)


def test_windows_nest_and_overlap(tmp_path: Path) -> None:
    names = ("outer", "first", "second", "within")
    outer, first, second, within = (hiwater.record(tmp_path / f"{name}.hiw") for name in names)
    outer.start()
    allocate(50)
    first.start()
    allocate(10)
    second.start()
    allocate(20)
    with within:
        allocate(5)
    first.stop()
    allocate(30)
    second.stop()
    outer.stop()
    peaks = {name: hiwater.open(tmp_path / f"{name}.hiw").peak.allocated_bytes >> 20 for name in names}
    assert peaks == {"outer": 50, "first": 20, "second": 30, "within": 5}
    assert [recorder.summary()["peak_bytes"] >> 20 for recorder in (first, second, within)] == [20, 30, 5]


def test_a_window_that_outlives_the_recording_around_it_is_written_with_that(tmp_path: Path) -> None:
    outer, inner = hiwater.record(tmp_path / "outer.hiw"), hiwater.record(tmp_path / "inner.hiw")
    outer.start()
    inner.start()
    allocate(7)
    outer.stop()
    assert not inner.recording
    allocate(70)
    inner.stop()
    assert hiwater.open(tmp_path / "inner.hiw").peak.allocated_bytes >> 20 == 7


def test_a_window_into_the_file_of_the_recording_around_goes_beside(tmp_path: Path) -> None:
    with hiwater.record(tmp_path / "same.hiw") as outer:
        with hiwater.record(tmp_path / "same.hiw") as inner:
            allocate(3)
        assert inner.path == str(tmp_path / "same.window.hiw")
        allocate(6)
    assert outer.path == str(tmp_path / "same.hiw")
    assert hiwater.open(tmp_path / "same.hiw").peak.allocated_bytes >> 20 == 6
    assert hiwater.open(tmp_path / "same.window.hiw").peak.allocated_bytes >> 20 == 3


def test_one_recorder_cannot_be_started_twice(tmp_path: Path) -> None:
    with (
        hiwater.record(tmp_path / "a.hiw") as recorder,
        pytest.raises(hiwater.errors.AlreadyRecording, match=r"a\.hiw"),
    ):
        recorder.start()


def test_windows_of_threads(tmp_path: Path) -> None:
    """All of them see the whole process, each in its own time."""
    import threading

    def work(number: int) -> None:
        for turn in range(5):
            with hiwater.record(tmp_path / f"{number}.{turn}.hiw"):
                kept = [bytearray(1 << 20) for _ in range(3)]
            del kept

    with hiwater.record(tmp_path / "outer.hiw"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for path in tmp_path.glob("*.*.hiw"):
        capture = hiwater.open(path)
        capture.check()
        assert 3 <= capture.peak.allocated_bytes >> 20 <= 13


def test_under_lines(tmp_path: Path) -> None:
    """These count, and record nothing: the program's recording is one as any other."""
    (tmp_path / "program.py").write_text(RECORDS_ITSELF.replace("40 << 20", "30 << 20"))
    done = run_hiwater("lines", "program.py", tmp_path / "inner.hiw", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True 30\n")
    assert hiwater.open(tmp_path / "inner.hiw").peak.allocated_bytes >> 20 == 30
