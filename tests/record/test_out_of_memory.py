"""Requests that are refused, ceilings, and the OOM killer: the program ends as it would have, and the capture says
what happened."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import hiwater
from children import hiwater_command, run_hiwater
from packages import skip_without
from recording import needs_engine

pytestmark = needs_engine

MIB = 2**20
CATCHING = """
held = [bytearray(20_000_000)]
caught = 0
for round in range(1000):
    try:
        bytearray(1 << 46)
    except MemoryError:
        caught += 1
print(caught)
"""
GROWING = """
import sys
held = []
try:
    while True:
        held.append(bytearray(10 << 20))
except MemoryError:
    print("refused at", len(held) // 10)
    sys.exit(7)
"""
PANDAS = """
import pandas as pd, numpy as np
frames = [pd.DataFrame({"a": np.arange(1_000_000) + i}) for i in range(150)]
print(len(pd.concat(frames)))
"""


def run(folder: Path, text: str, *options: str, **more: object) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(text))
    words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(folder / "c.hiw"), *options, str(program)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def report(folder: Path, *words: str) -> str:
    return run_hiwater("report", folder / "c.hiw", *words, check=True).stdout


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")])
def test_a_program_that_catches_a_thousand_errors_goes_on_and_each_has_its_mark(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run(tmp_path, CATCHING, *options)
    assert (done.returncode, done.stdout) == (0, "1000\n")
    capture = hiwater.open(tmp_path / "c.hiw")
    capture.check()
    assert len(capture.refusals) == 1000
    assert {mark.frames[-1].line for mark in capture.refusals} == {6}
    assert all(mark.value in range(1 << 46, (1 << 46) + 64) for mark in capture.refusals)
    assert capture.oom.name == "oom"
    assert abs(capture.oom.allocated_bytes - 20_000_000) < 100_000
    shown = report(tmp_path, "--at", "oom", "--full")
    assert "Memory was refused  1,000 times" in shown and "program.py:6" in shown


def test_every_way_of_asking_leaves_a_mark(tmp_path: Path) -> None:
    text = """
    import ctypes, mmap
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
    huge = ctypes.c_size_t(1 << 50)
    assert libc.malloc(huge) is None
    assert libc.calloc(ctypes.c_size_t(1 << 40), ctypes.c_size_t(1 << 20)) is None
    assert libc.realloc(None, huge) is None
    assert libc.posix_memalign(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64), huge) == 12
    try:
        mmap.mmap(-1, 1 << 50)
    except OSError:
        pass
    grown = bytearray(10)
    try:
        grown.extend(b"x") or grown.__init__(1 << 50)
    except MemoryError:
        pass
    """
    assert run(tmp_path, text).returncode == 0
    marks = hiwater.open(tmp_path / "c.hiw").refusals
    assert [mark.frames[-1].line for mark in marks] == [6, 7, 8, 9, 11, 16]
    assert [mark.value for mark in marks[:5]] == [1 << 50, 1 << 60, 1 << 50, 1 << 50, 1 << 50]


def test_what_was_live_then_is_told_though_the_peak_was_elsewhere(tmp_path: Path) -> None:
    text = """
    peak = bytearray(60_000_000)
    del peak
    kept = bytearray(7_000_000)
    try:
        bytearray(1 << 46)
    except MemoryError:
        pass
    del kept
    """
    assert run(tmp_path, text).returncode == 0
    told = json.loads(report(tmp_path, "--format", "json", "--at", "oom"))
    assert abs(told["shown"]["bytes"] - 7_000_000) < 50_000
    assert told["refusals"]["count"] == 1 and told["refusals"]["last"][0]["bytes"] in range(1 << 46, (1 << 46) + 64)
    assert told["peak"]["allocated_bytes"] > 60_000_000


def test_a_program_to_which_nothing_was_refused_says_so(tmp_path: Path) -> None:
    run(tmp_path, "pass")
    done = run_hiwater("report", tmp_path / "c.hiw", "--at", "oom")
    assert done.returncode == 2 and "never refused" in done.stderr


def under_ulimit(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    words = [sys.executable, str(folder / "program.py")]
    return subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=lower)


def test_a_ceiling_ends_a_program_as_ulimit_would(tmp_path: Path) -> None:
    limited = run(tmp_path, GROWING, "--limit", "400MiB")
    plain = under_ulimit(tmp_path, 400 * MIB)
    assert limited.returncode == plain.returncode == 7
    assert int(limited.stdout.split()[-1]) == pytest.approx(int(plain.stdout.split()[-1]), abs=2)
    shown = report(tmp_path, "--full")
    assert "program.py:6" in shown.split("Memory was refused")[1]
    assert "(--limit)" in shown and "of the limit of 400.0 MiB" in shown


def test_a_pandas_job_that_needs_three_times_its_ceiling(tmp_path: Path) -> None:
    skip_without("pandas")
    limited = run(tmp_path, PANDAS, "--limit", "700MiB")
    plain = under_ulimit(tmp_path, 700 * MIB)
    assert limited.returncode == plain.returncode == 1
    assert limited.stderr.splitlines()[-1].startswith(plain.stderr.splitlines()[-1].split(":")[0])
    (last,) = hiwater.open(tmp_path / "c.hiw").refusals[-1:]
    assert last.value >= 8_000_000
    assert "program.py:3" in report(tmp_path, "--at", "oom", "--full").split("Memory was refused")[1].split("\n\n")[0]


def test_a_limit_of_the_programs_own_holds(tmp_path: Path) -> None:
    text = """
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (900 << 20, resource.RLIM_INFINITY))
    held = [bytes(1000) for _ in range(200_000)]
    print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 20)
    """
    assert run(tmp_path, text, "--limit", "2GiB").stdout == "900\n"


@pytest.mark.parametrize("size", ["lots", "-5", "1 parsec"])
def test_a_ceiling_that_is_none(tmp_path: Path, size: str) -> None:
    done = run(tmp_path, "pass", f"--limit={size}")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A memory cgroup of our own, v1 or v2, where one can be made."""
    for parent, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = parent / f"hiwater-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / name).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        try:
            with contextlib.suppress(OSError):  # without it the kernel swaps first
                (folder / ("memory.swap.max" if name == "memory.max" else "memory.memsw.limit_in_bytes")).write_text(
                    "0" if name == "memory.max" else str(limit)
                )
            yield folder
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")


def test_a_kill_by_the_groups_limit_is_told_with_what_held_memory(tmp_path: Path) -> None:
    with memory_group(150 * MIB) as group:

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        done = run(
            tmp_path,
            "held = []\nwhile True:\n    held.append(bytearray(b'x' * (1 << 20)))\n",
            preexec_fn=enter,
        )
        assert done.returncode == -signal.SIGKILL
        capture = hiwater.open(tmp_path / "c.hiw")
        assert capture.process.ended == "killed"
        last = capture.pressure[-1]
        assert last.cgroup_limit == 150 * MIB and last.cgroup_bytes is not None and last.cgroup_bytes > 120 * MIB
        shown = report(tmp_path, "--full")
    assert "was killed" in shown and "OOM killer has ended processes of its cgroup" in shown
    assert "of the limit of 150.0 MiB" in shown
    assert "program.py:3" in shown.split("\nYour lines")[1]


def test_the_last_lines_of_a_run_tell_that_a_worker_was_killed_by_the_groups_limit(tmp_path: Path) -> None:
    """The process that writes them is in the group, too: where it is one too many, the kernel ends it and not the
    program."""
    text = """\
import os
if os.fork() == 0:
    held = []
    while True:
        held.append(bytearray(b'x' * (1 << 20)))
os.wait()
print("survives")
"""
    with memory_group(150 * MIB) as group:

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        program = tmp_path / "program.py"
        program.write_text(text)
        words = hiwater_command("run", "-o", tmp_path / "c.hiw", program)
        done = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=enter)
    assert (done.returncode, done.stdout) == (0, "survives\n")
    (told,) = [line for line in done.stderr.splitlines() if " was killed (SIGKILL)" in line]
    assert "the kernel's OOM killer has ended processes of its cgroup since the recording began: 1" in told
    assert "program.py:5 in <module>" in done.stderr
