"""Interpreters with a GIL of their own (Python 3.12 and later) allocate while recordings start and stop in the main
one.

They read an allocator's function and its context one after the other, and no lock is in between.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
from recording import child_environment, needs_engine

pytestmark = needs_engine

# Calls each function with the context of the other moment, as an interpreter does that reads one before the recording
# starts or stops, and the other after.
MIXED = """\
import ctypes, sys, hiwater
if sys.argv[2:] == ["traced"]:
    import tracemalloc
    tracemalloc.start()
class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]
Malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
Calloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
Realloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
Free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
MEM, OBJ = 1, 2
def allocators():
    found = [Allocator(), Allocator()]
    for domain, one in zip((MEM, OBJ), found):
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(one))
    return found
def use(functions, context):
    for bytes in (16, 400, 5000):
        block = Malloc(functions.malloc)(context, bytes)
        block = Realloc(functions.realloc)(context, block, bytes + 300)
        Free(functions.free)(context, block)
        Free(functions.free)(context, Calloc(functions.calloc)(context, 3, bytes))
plain = allocators()
for _ in range(2):
    with hiwater.record("a.hiw", sample=int(sys.argv[1]) or None):
        recorded = allocators()
        for before, now in zip(plain, recorded):
            assert before.malloc != now.malloc
            use(now, before.context)
            use(before, now.context)
        sys.modules["hiwater._core"].self_check()
    for before, now, after in zip(plain, recorded, allocators()):
        assert bytes(after) == bytes(before)
        use(now, after.context)
        use(after, now.context)
print("whole")
"""

PROGRAM = """\
import os, sys, threading, hiwater
if sys.version_info >= (3, 13):
    import _interpreters
    create, run = lambda: _interpreters.create("isolated"), _interpreters.exec
else:
    import _xxsubinterpreters
    create, run = lambda: _xxsubinterpreters.create(isolated=True), _xxsubinterpreters.run_string
reading, writing = os.pipe()
TEXT = f'''
import os
os.set_blocking({reading}, False)
rounds = 0
while True:
    rows = [(i, str(i), [i] * (i % 40), bytearray(i)) for i in range(200)]
    rows[0][2].extend(range(500))
    rounds += 1
    try:
        if not os.read({reading}, 1): break
    except BlockingIOError:
        pass
'''
def work():
    found = run(create(), TEXT)
    assert found is None, found
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
sampling = int(sys.argv[1]) or None
for number in range(40):
    with hiwater.record("a.hiw", sample=sampling):
        held = [bytearray(1000) for _ in range(50)]
        sys.modules["hiwater._core"].self_check()
os.close(writing)
for thread in threads:
    thread.join()
print("whole")
"""


def check(folder: Path, program: str, *words: str) -> None:
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py", *words],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-2000:]
    assert hiwater.open(folder / "a.hiw").problems() == []


@pytest.mark.parametrize("words", [(), ("traced",)], ids=["plain", "tracemalloc"])
@pytest.mark.parametrize("sampling", ["0", "65536"])
def test_a_function_and_a_context_of_different_moments_go_together(
    tmp_path: Path, sampling: str, words: tuple[str, ...]
) -> None:
    check(tmp_path, MIXED, sampling, *words)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before 3.12 all interpreters share one GIL")
@pytest.mark.parametrize("sampling", ["0", "65536"])
def test_recordings_start_and_stop_while_other_interpreters_allocate(tmp_path: Path, sampling: str) -> None:
    check(tmp_path, PROGRAM, sampling)
