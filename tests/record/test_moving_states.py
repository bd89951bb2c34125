"""Thread states of the interpreter that move between threads and stacks: each block is under the lines that
allocated it, and nothing crashes."""

import subprocess
import sys
from pathlib import Path

import compiled
import hiwater
import naive_reader
from recording import child_environment, needs_engine

pytestmark = needs_engine

COMMON = """\
import ctypes, sys, hiwater
library = ctypes.PyDLL(sys.argv[1])
library.call_elsewhere.argtypes = library.call_in_fiber.argtypes = [ctypes.py_object]
kept = []
"""
ELSEWHERE = COMMON + (
    """\
def deep(depth):
    return deep(depth - 1) if depth else bytearray(10_000)  # other
def other():
    library.tell_running()
    for i in range(20_000):
        kept.append(deep(i % 60))
        if i >= 100: kept.pop()
with hiwater.record("a.hiw"):
    for turn in range(3): count = library.call_elsewhere(other)  # call
assert count > 0, count
"""
)
# The frames from `deep` up are the same, at the same addresses, each time that a turn begins; only the line below them
# is another.
FIBER = COMMON + (
    """\
def inner():
    kept.append(bytearray(10_000))
    library.leave_fiber()
    kept.append(bytearray(10_000))
def deep(depth):
    return deep(depth - 1) if depth else inner()
def fiber():
    deep(20)  # first
    deep(20)  # second
    deep(20)  # third
    deep(20)  # fourth
with hiwater.record("a.hiw"):
    assert library.call_in_fiber(fiber) == 0
"""
)


def record(folder: Path, text: str) -> naive_reader.NaiveCapture:
    (folder / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py", compiled.library("moving_states")],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    assert hiwater.open(folder / "a.hiw").problems() == []
    return naive_reader.read(folder / "a.hiw")


def line(text: str, comment: str) -> int:
    return next(n for n, of in enumerate(text.splitlines(), 1) if of.endswith(f"# {comment}"))


def test_a_state_is_used_on_another_thread_while_its_own_allocates(tmp_path: Path) -> None:
    stacks = record(tmp_path, ELSEWHERE).stacks("end")
    other = [s for s in stacks if any(f.line == line(ELSEWHERE, "other") for f in s.frames)]
    assert sum(s.blocks for s in other if s.bytes >= 10_000) >= 300
    assert all(any(f.line == line(ELSEWHERE, "call") for f in s.frames) for s in other)
    # What its own thread allocates meanwhile is under none of the lines that the other one runs.
    meanwhile = [s for s in stacks if s.kind == "native" and s.bytes == 777 * s.blocks]
    assert sum(s.blocks for s in meanwhile if s not in other) == 3000


def test_a_fiber_goes_on_on_another_thread(tmp_path: Path) -> None:
    stacks = record(tmp_path, FIBER).stacks("end")
    for comment in ("first", "second", "third", "fourth"):
        of_line = [s for s in stacks if any(f.line == line(FIBER, comment) for f in s.frames)]
        assert 20_000 < sum(s.bytes for s in of_line) < 21_000, comment
