"""Children that no fork handler hears of: made by `_Fork()`, by system calls, by vfork. None writes into the capture
of its parent."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import compiled
import hiwater
from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

# aarch64 has no system call `fork`.
CALLS = {"clone": 220, "SIGCHLD": 17} if platform.machine() == "aarch64" else {"fork": 57, "clone": 56, "SIGCHLD": 17}
SYSTEM_CALLS = [name for name in ("fork", "clone") if name in CALLS]
WAYS = f"""
import ctypes
CALLS = {CALLS}
libc = ctypes.PyDLL(None)
ways = {{
    "_Fork": lambda: libc._Fork(),
    "C library": lambda: libc.fork(),
    "fork": lambda: libc.syscall(CALLS["fork"]),
    "clone": lambda: libc.syscall(CALLS["clone"], CALLS["SIGCHLD"], 0, 0, 0, 0),
}}
"""
PROGRAM = (
    WAYS
    + """
import os, subprocess, sys, hiwater
kept = [bytes(1000) for _ in range(2000)]
way = sys.argv[1]
pid = ways[way]()
if pid == 0:
    mine = [bytes(1000) for _ in range(50_000)]
    def fresh(): return [bytearray(300) for _ in range(1000)]
    exec("other = fresh()")
    if sys.argv[2] == "record":
        with hiwater.record("child.hiw"):
            more = bytes(3_000_000)
    os._exit(33)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 33
subprocess.run(["true"])
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
after = bytes(20_000_000)
"""
)


@pytest.mark.parametrize("what", ["allocate", "record"])
@pytest.mark.parametrize("way", ["_Fork", *SYSTEM_CALLS])
@pytest.mark.parametrize("sampling", [(), ("--sample", "8KiB")])
def test_a_child_without_fork_handlers_is_not_recorded(
    tmp_path: Path, way: str, what: str, sampling: tuple[str, ...]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_hiwater("run", "-o", "a.hiw", *sampling, "program.py", way, what, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    capture = hiwater.open(tmp_path / "a.hiw")
    assert capture.problems() == []
    # What the parent held: recorded before and after.
    assert 22_000_000 < int(capture.peak.allocated_bytes) < 26_000_000
    assert capture.process.exit_code == 0
    assert (tmp_path / "child.hiw").exists() == (what == "record")
    if what == "record":
        child = hiwater.open(tmp_path / "child.hiw")
        assert 3_000_000 <= int(child.peak.allocated_bytes) < 4_000_000


AMID_MALLINFO = (
    WAYS
    + """
import os, sys, threading, time
asked = ctypes.CDLL(sys.argv[2])
many_free = [bytes(1500) for _ in range(40_000)]
del many_free[::2]
asked.let_it_last()
held = []
while not asked.is_under_way():
    held.append(b"x" * 1_000_000)
    time.sleep(0.01)
pid = ways[sys.argv[1]]()
if pid == 0:
    thread = threading.Thread(target=lambda: [bytes(2000) for _ in range(100)])
    thread.start()
    thread.join()
    os._exit(33)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 33
"""
)


@pytest.mark.parametrize("way", ["_Fork", "C library", *SYSTEM_CALLS])
def test_a_child_that_is_made_while_our_thread_asks_malloc_has_mallocs_locks_free(tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(AMID_MALLINFO)
    library = str(compiled.library("long_mallinfo"))
    done = run_hiwater(
        "run", "-o", "a.hiw", "program.py", way, library, folder=tmp_path, environment={"LD_PRELOAD": library}
    )
    assert done.returncode == 0, done.stderr
    assert hiwater.open(tmp_path / "a.hiw").problems() == []
