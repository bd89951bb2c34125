"""A program whose main thread ends alone, or is ended by the kernel: the process ends as without hiwater, whose
thread is the last one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from children import hiwater_command
from recording import child_environment, needs_engine

pytestmark = needs_engine

PROGRAM = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
held = [bytes(5000) for _ in range(100)]
def strict():
    libc.prctl(22, 1, 0, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_STRICT
def filtered():  # SECCOMP_RET_KILL_THREAD for getpriority, else SECCOMP_RET_ALLOW
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 140), (6, 0, 0, 0), (6, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("=HBBI", *one) for one in steps)
    program = ctypes.create_string_buffer(code)
    libc.prctl(38, 1, 0, 0, 0)
    filtering = struct.pack("=HxxxxxxQ", 4, ctypes.addressof(program))
    libc.prctl(22, 2, ctypes.byref(ctypes.create_string_buffer(filtering)), 0, 0)
    libc.getpriority(0, 0)
"""
ENDINGS = {
    "strict seccomp": ("strict(); os.stat('/')", -9),
    "its last call under strict seccomp": ("strict(); libc.syscall(60, 7)", 7),
    "a filter": ("filtered()", -31),
    "the exit of a thread": ("libc.syscall(60, 7)", 7),
}


WAYS = [(ending, way) for ending in ENDINGS for way in (("-q", "-o", "run.hiw"), ("--standby",))]


@pytest.mark.parametrize(("how", "words"), WAYS, ids=[f"{how} {words[0]}" for how, words in WAYS])
def test_the_process_ends_as_without_hiwater(how: str, words: tuple[str, ...], tmp_path: Path) -> None:
    code, status = ENDINGS[how]
    source = f"{PROGRAM}\n{code}"
    plain, recorded = (
        subprocess.run(command, cwd=tmp_path, timeout=300, check=False, env=child_environment())
        for command in ([sys.executable, "-c", source], hiwater_command("run", *words, "-c", source))
    )
    assert (plain.returncode, recorded.returncode) == (status, status)
    assert (tmp_path / "run.hiw").exists() == ("-o" in words)


def test_in_standby_no_thread_asks_for_the_gil(tmp_path: Path) -> None:
    """The program keeps it for longer than hiwater's thread sleeps: to give it away would end the main thread, which
    would leave the process alive."""
    source = f"""{PROGRAM}
import time
begun, rounds = time.monotonic(), 0
while time.monotonic() - begun < 0.7: rounds += 1
rounds *= 4  # of a loop that is three times as fast
strict()
while rounds: rounds -= 1
libc.syscall(60, 7)
"""
    command = hiwater_command("run", "--standby", "-c", source)
    assert subprocess.run(command, cwd=tmp_path, timeout=300, check=False, env=child_environment()).returncode == 7


def test_a_thread_in_strict_mode_waits_for_nothing_of_hiwater(tmp_path: Path) -> None:
    """It allocates and frees for a while: each event, and each call that the recorder's thread asks the main thread
    for, would end it."""
    source = f"{PROGRAM}\nstrict()\nfor _ in range(200_000): bytes(2_000), bytes(600)\nlibc.syscall(60, 7)"
    command = hiwater_command("run", "-q", "-o", "run.hiw", "-c", source)
    assert subprocess.run(command, cwd=tmp_path, timeout=300, check=False, env=child_environment()).returncode == 7
