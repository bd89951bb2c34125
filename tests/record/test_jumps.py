"""Signal handlers that jump (siglongjmp) in the midst of calls that are recorded: the program goes on, and the
capture says what it lacks."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

import compiled
import hiwater
import naive_reader
from recording import child_environment, needs_engine

pytestmark = needs_engine

JUMPS = 400
KEPT_BYTES, KEPT_BLOCKS = 700, 1000
PROGRAM = """\
import ctypes, os, sys, hiwater
manner, work, jumps = sys.argv[1].encode(), sys.argv[2].encode(), int(sys.argv[3])
library = ctypes.CDLL(os.path.join(os.environ["HIWATER_TEST_LIBRARIES"], "jumps.so"))
with hiwater.record("a.hiw"):
    assert library.run(manner, work, jumps) == 0
    library.keep()
after = hiwater.record("b.hiw")
with after:
    library.keep()
"""
LINES_OF_KEEP = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "keep" in line]


def record(folder: Path, manner: str, work: str) -> None:
    compiled.library("jumps")
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", manner, work, str(JUMPS)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env=child_environment({"LD_PRELOAD": str(compiled.library("one_place"))}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def kept(path: Path, line: int) -> int:
    leaves = [s for s in naive_reader.read(path).stacks("end") if s.leaf is not None and s.leaf.line == line]
    return sum(s.bytes for s in leaves if s.kind == "native")


@pytest.mark.parametrize("work", ["heap", "mappings"])
@pytest.mark.parametrize("manner", ["out", "out_of_other_stack"])
def test_a_jump_out_of_a_recorded_call_stops_the_recording_and_nothing_else(
    tmp_path: Path, manner: str, work: str
) -> None:
    """Another thread, which would wait for the one that jumped, goes on; and so does the next recording."""
    record(tmp_path, manner, work)
    capture = hiwater.open(tmp_path / "a.hiw")
    assert capture.problems() == []
    assert capture.process.stop_reason is not None and "siglongjmp" in capture.process.stop_reason
    assert hiwater.open(tmp_path / "b.hiw").problems() == []
    assert kept(tmp_path / "b.hiw", LINES_OF_KEEP[1]) == KEPT_BYTES * KEPT_BLOCKS


@pytest.mark.parametrize("work", ["heap", "mappings"])
def test_a_jump_within_a_handler_leaves_nothing(tmp_path: Path, work: str) -> None:
    record(tmp_path, "within", work)
    for name, line in zip(("a.hiw", "b.hiw"), LINES_OF_KEEP, strict=True):
        capture = hiwater.open(tmp_path / name)
        assert (capture.problems(), capture.process.stop_reason) == ([], None)
        assert kept(tmp_path / name, line) == KEPT_BYTES * KEPT_BLOCKS


STEPPED = """\
import ctypes, sys, hiwater
library = ctypes.PyDLL(sys.argv[1])
work = sys.argv[2].encode()
with hiwater.record("a.hiw"):
    came = library.step(work)
    library.keep()
print(came)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the trap flag is of this processor")
@pytest.mark.parametrize("work", ["heap", "mappings", "objects", "array"])
def test_a_handler_after_any_instruction_may_map_memory_and_jump_within_itself(tmp_path: Path, work: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPPED, compiled.library("stepped"), work],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
    capture = hiwater.open(tmp_path / "a.hiw")
    assert (capture.problems(), capture.process.stop_reason) == ([], None)
    assert kept(tmp_path / "a.hiw", 6) == KEPT_BYTES * KEPT_BLOCKS


@pytest.mark.parametrize("work", ["first_event", "far_blocks", "failing_exec"])
def test_a_jump_out_of_a_lesser_lock_leaves_it_free(tmp_path: Path, work: str) -> None:
    """The handler comes in exactly there: at the first event of a thread, as a table grows, as the capture is closed
    for an exec."""
    program = (
        "import ctypes, sys, hiwater\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "with hiwater.record('a.hiw'): assert (code := library.run(sys.argv[2].encode())) == 0, code\n"
        "with hiwater.record('b.hiw'): kept = bytearray(1_000_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, compiled.library("interrupted"), work],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env=child_environment({"LD_PRELOAD": str(compiled.library("interrupting"))}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    capture = hiwater.open(tmp_path / "a.hiw")
    assert capture.problems() == []
    assert capture.process.stop_reason is not None and "siglongjmp" in capture.process.stop_reason
    assert hiwater.open(tmp_path / "b.hiw").problems() == []
    assert int(hiwater.open(tmp_path / "b.hiw").peak.allocated_bytes) >= 1_000_000
