"""Another thread loads and unloads a library while recordings start and stop, which change call slots in all loaded
libraries."""

import subprocess
import sys
from pathlib import Path

import compiled
import hiwater
from recording import child_environment, needs_engine

pytestmark = needs_engine

# One symbol and 10,000 slots for it: the search and the stores take long enough for an unload to fall in between.
LIBRARY = """\
#include <stdlib.h>
#define FIVE(...) __VA_ARGS__ __VA_ARGS__ __VA_ARGS__ __VA_ARGS__ __VA_ARGS__
#define TEN(...) FIVE(__VA_ARGS__) FIVE(__VA_ARGS__)
void* (*slots[])(size_t) = { TEN(TEN(TEN(TEN(malloc,)))) };
"""
PROGRAM = """\
import ctypes, sys, hiwater
reload = ctypes.CDLL(sys.argv[1])
path = sys.argv[2].encode()
assert reload.begin(path) == 0
for _ in range(100):
    with hiwater.record("a.hiw"):
        held = bytearray(10_000)
rounds = reload.end()
assert rounds > 0, rounds
print("whole")
"""


def test_a_library_is_unloaded_while_call_slots_are_changed(tmp_path: Path) -> None:
    (tmp_path / "slots.c").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    library = tmp_path / "slots.so"
    subprocess.run([*compiled.C, tmp_path / "slots.c", "-o", library], check=True)
    done = subprocess.run(
        [sys.executable, "program.py", compiled.library("reload"), library],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-2000:]
    assert hiwater.open(tmp_path / "a.hiw").problems() == []


def test_no_function_that_takes_the_loaders_first_lock_is_called_under_its_second(tmp_path: Path) -> None:
    """A thread in `dlopen` takes both in that order, and would wait for the one that starts a recording for ever."""
    program = (
        "import hiwater\nfor _ in range(2):\n    with hiwater.record('a.hiw'): held = bytearray(10_000)\nprint('whole')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env=child_environment({"LD_PRELOAD": str(compiled.library("loader_calls"))}),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-2000:]
