"""Somebody truncates or overwrites the capture while it is written: the program does not notice, and the end of the
run says so."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hiwater
from recording import needs_engine
from waiting import wait_until
from waiting_program import SECONDS, WAITS, recording, run

pytestmark = needs_engine

LOAD = """
import threading, os, sys
stop = False
def work():
    while not stop:
        kept = [bytes(n) for n in range(0, 3000, 7)]
        exec("def f():\\n" + "\\n" * (len(kept) % 5) + "  return [bytearray(40) for _ in range(50)]\\nf()")
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
print("ready", flush=True)
input()
stop = True
for thread in threads: thread.join()
sys.exit(9)
"""


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def shorten(path: Path) -> None:
    os.truncate(path, 300_000)


def write_text_over(path: Path) -> None:
    path.write_text("hello")


def write_noise_over(path: Path) -> None:
    path.write_bytes(random.Random(5).randbytes(6_000_000))


def copy_a_capture_over(path: Path) -> None:
    shutil.copyfile(path.with_name("other.hiw"), path)


HARMS = [truncate, shorten, write_text_over, write_noise_over, copy_a_capture_over]


@pytest.mark.grid
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("source", [WAITS, LOAD])
def test_a_capture_that_is_cut_harms_no_program(tmp_path: Path, harm: object, source: str) -> None:
    run(tmp_path, "-q", "-o", "other.hiw", "-c", "import json")
    with recording(tmp_path, source, "-q", "-o", "a.hiw") as process:
        harm(tmp_path / "a.hiw")  # type: ignore[operator] # one of those above
        out, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == (9 if source is LOAD else 7), said
    assert out == ""
    assert said.count("hiwater: ") == 1
    assert "another program truncated its capture or wrote over it" in said
    assert "read it with" not in said


@pytest.mark.parametrize("name", ["SIGTERM", "SIGALRM", "SIGABRT", "SIGSEGV", "SIGBUS", "SIGRTMIN"])
def test_a_signal_that_ends_the_program_ends_it_although_the_capture_was_truncated(tmp_path: Path, name: str) -> None:
    # Stopped meanwhile: the signal is there before any thread can notice what was done to the file.
    for _ in range(3):
        with recording(tmp_path, WAITS, "-q", "-o", "a.hiw") as process:
            os.kill(process.pid, signal.SIGSTOP)
            truncate(tmp_path / "a.hiw")
            os.kill(process.pid, getattr(signal, name))
            os.kill(process.pid, signal.SIGCONT)
            _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == -getattr(signal, name), said


def test_the_figures_are_those_of_a_moment_before(tmp_path: Path) -> None:
    source = "kept = bytes(50_000_000); print('ready', flush=True); input()"
    with recording(tmp_path, source, "-o", "a.hiw") as process:
        before = len(hiwater.open(tmp_path / "a.hiw").timeline)
        wait_until(lambda: len(hiwater.open(tmp_path / "a.hiw").timeline) > before + 1)
        truncate(tmp_path / "a.hiw")
        _, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 0
    assert "peak 47.7 MiB allocated (not exact" in said or "peak 47.8 MiB allocated (not exact" in said, said
    assert "read it with" not in said


def test_what_is_put_there_stays_as_it_is(tmp_path: Path) -> None:
    """Once the recorder knows, and has no part of the file mapped, it does not write there any more."""
    with recording(tmp_path, LOAD, "-q", "-o", "a.hiw") as process:
        truncate(tmp_path / "a.hiw")
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: str(tmp_path / "a.hiw") not in maps.read_text())
        (tmp_path / "a.hiw").write_text("mine")
        process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 9
    assert (tmp_path / "a.hiw").read_text() == "mine"


# What a program that has its own ways with SIGBUS sees, alone and recorded.
OWN_BUS = {
    "read": "print(signal.getsignal(signal.SIGBUS))",
    "default": "fault()",
    "sent": "os.kill(os.getpid(), signal.SIGBUS); time.sleep(5)",
    "python handler": (
        "signal.signal(signal.SIGBUS, lambda *a: print('handler', a[0])); os.kill(os.getpid(), signal.SIGBUS)"
    ),
    "ignored": "signal.signal(signal.SIGBUS, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGBUS); print('on')",
    "ignored fault": "signal.signal(signal.SIGBUS, signal.SIG_IGN); fault()",
    "ignored by a child": (
        "signal.signal(signal.SIGBUS, signal.SIG_IGN); print(subprocess.run(['grep', 'SigIgn', "
        "'/proc/self/status'], capture_output=True).stdout)"
    ),
    "default in a child": (
        "print(subprocess.run(['grep', '-E', 'Sig(Ign|Cgt)', '/proc/self/status'], capture_output=True).stdout)"
    ),
    "faulthandler": "faulthandler.enable(); fault()",
    "blocked and waited for": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS]); os.kill(os.getpid(), signal.SIGBUS); "
        "time.sleep(0.1); print(signal.sigwait([signal.SIGBUS]))"
    ),
    "fork": "pid = os.fork()\nif pid == 0: fault()\nprint(os.waitpid(pid, 0)[1])",
    "set back": (
        "old = signal.signal(signal.SIGBUS, print); print(old); print(signal.signal(signal.SIGBUS, old) is "
        "print); fault()"
    ),
    "C handler": "libc.signal(signal.SIGBUS, ctypes.cast(libc._exit, ctypes.c_void_p)); fault()",
    "C old handler": (
        "libc.signal.restype = ctypes.c_void_p; print(libc.signal(signal.SIGBUS, ctypes.c_void_p(1))); "
        "print(libc.signal(signal.SIGBUS, ctypes.c_void_p(0)))"
    ),
}
PRELUDE = """
import ctypes, faulthandler, mmap, os, signal, subprocess, sys, tempfile, time
libc = ctypes.CDLL(None)
def fault():
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        view = mmap.mmap(file.fileno(), 4096)
        os.ftruncate(file.fileno(), 0)
        view[5]
"""


@pytest.mark.parametrize("name", OWN_BUS)
def test_sigbus_is_the_programs_own(tmp_path: Path, name: str) -> None:
    (tmp_path / "program.py").write_text(PRELUDE + textwrap.dedent(OWN_BUS[name]))
    alone = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    recorded = run(tmp_path, "-o", "a.hiw", "program.py")
    assert recorded.returncode == alone.returncode
    assert recorded.stdout == alone.stdout
    if name == "faulthandler":
        assert "Fatal Python error: Bus error" in recorded.stderr


@pytest.mark.parametrize("name", ["python handler", "faulthandler"])
def test_a_cut_capture_and_a_program_with_its_own_ways_with_sigbus(tmp_path: Path, name: str) -> None:
    setting = {
        "python handler": "signal.signal(signal.SIGBUS, lambda *a: sys.exit(55))",
        "faulthandler": "faulthandler.enable()",
    }[name]
    source = "import faulthandler, signal, sys, time\n" + setting + "\n" + LOAD
    with recording(tmp_path, source, "-q", "-o", "a.hiw") as process:
        truncate(tmp_path / "a.hiw")
        _, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 9, said
    assert "another program truncated" in said


def test_sigbus_after_the_recording_is_as_before_it(tmp_path: Path) -> None:
    """As the kernel has it: /proc/self/status names the signals that are caught."""
    source = r"""
        import hiwater, re, resource, signal
        def is_caught():
            mask = re.search(r"SigCgt:\s*(.*)", open("/proc/self/status").read()).group(1)
            return int(mask, 16) >> (signal.SIGBUS - 1) & 1
        assert not is_caught()
        with hiwater.record("a.hiw"):
            assert is_caught()
        assert not is_caught()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            hiwater.record("b.hiw").start()
        except hiwater.errors.CaptureUnwritable:
            assert not is_caught()
            raise SystemExit(3)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
