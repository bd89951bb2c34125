"""Limits of address space and of data (`ulimit -v`, `ulimit -d`): a recording takes little of either, and goes on
where the program meets its limit."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import hiwater
from hiwater._os import destination
from recording import child_environment, needs_engine

pytestmark = needs_engine

MIB = 2**20
MOST_MIB = 16  # of a recording of a small program
SPACE = """
def space(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name + ":"))
"""
# Fills what there is three times, with all there was given back between. What a MemoryError leaves is enough to go on.
FILLING = """
import sys

def take(kind, kept):
    taken = 0
    try:
        while True:
            if kind == "large":
                kept.append(bytearray(1_000_000)); taken += 1_000_000
            elif kind == "small":
                kept.append(bytes(1000)); taken += 1000
            else:
                kept.append((taken,)); taken += 56
    except MemoryError:
        return taken

def fill(kind, depth):
    return fill(kind, depth - 1) if depth else take(kind, [])

print(fill(sys.argv[1], 0), fill(sys.argv[1], 20), fill(sys.argv[1], 0))
for number in range(500):
    exec(f"def made_{number}():\\n    return bytes({number})\\nmade_{number}()")
raise SystemExit(6)
"""


def command(
    folder: Path, text: str, *, recorded: bool, options: tuple[str, ...] = (), arguments: tuple[str, ...] = ()
) -> list[str]:
    program = folder / "program.py"
    program.write_text(text)
    recorder = ["-m", "hiwater", "run", "-q", "-o", str(folder / "c.hiw"), *options] if recorded else []
    return [sys.executable, *recorder, str(program), *arguments]


def run(words: list[str], limits: dict[int, int]) -> subprocess.CompletedProcess[str]:
    def lower() -> None:
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, value))  # as `ulimit` does: the program cannot raise it

    return subprocess.run(
        words, capture_output=True, text=True, check=False, preexec_fn=lower, timeout=300, env=child_environment()
    )


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB"), ("--limit", "2GiB")], ids=["exact", "sampled", "limit"])
def test_a_recording_takes_little_address_space(tmp_path: Path, options: tuple[str, ...]) -> None:
    text = SPACE + "print(space('VmSize'), space('VmData'))"
    plain, recorded = (
        [int(word) for word in run(command(tmp_path, text, recorded=recorded, options=options), {}).stdout.split()]
        for recorded in (False, True)
    )
    assert recorded[0] - plain[0] < MOST_MIB * MIB, "address space (VmSize)"
    assert recorded[1] - plain[1] < MOST_MIB * MIB, "data (VmData)"


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["large", "small", "objects"])
@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA], ids=["address space", "data"])
@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_a_program_that_meets_its_limit_is_recorded_to_its_end(
    tmp_path: Path, kind: str, limit: int, options: tuple[str, ...]
) -> None:
    if kind == "objects" and sys.version_info >= (3, 15):
        pytest.skip("CPython 3.15.0 itself crashes at about every other limit where it has no memory for a tuple")
    limits = {limit: 96 * MIB}
    plain, recorded = (
        run(command(tmp_path, FILLING, recorded=recorded, options=options, arguments=(kind,)), limits)
        for recorded in (False, True)
    )
    assert plain.returncode == recorded.returncode == 6, recorded.stderr
    assert recorded.stderr == ""
    # An exact recording keeps 4 bytes for each 16 where small blocks are, and 8 for each 512 where large ones are;
    # tuples and their ints are small.
    share = 0.75 if kind == "objects" and not options else 0.97
    before = [int(word) for word in plain.stdout.split()]
    after = [int(word) for word in recorded.stdout.split()]
    for number, (alone, with_us) in enumerate(zip(before, after, strict=True)):
        assert with_us > (alone - (MOST_MIB + 4) * MIB) * share, (
            f"round {number + 1}: {before} without a recording, {after} with one"
        )
    capture = hiwater.open(tmp_path / "c.hiw")
    capture.check()
    assert (capture.process.ended, capture.lost_events, capture.process.stop_reason) == ("exit", 0, None)


PROGRAM_WITH_A_LATE_LIMIT = (
    SPACE
    + """
import resource, sys
kept = [bytes(500) for _ in range(20_000)]
how, name = sys.argv[1], "VmSize" if sys.argv[2] == "AS" else "VmData"
limit = getattr(resource, "RLIMIT_" + sys.argv[2])
wanted = space(name) + 60_000_000
if how == "itself":
    resource.setrlimit(limit, (wanted, resource.getrlimit(limit)[1]))
else:
    print(wanted, flush=True)
    sys.stdin.readline()
taken = 0
try:
    while taken < 2_000:
        kept.append(bytearray(100_000)); taken += 1
except MemoryError:
    refused = taken
    kept.clear()
print(450 < refused < 620, resource.getrlimit(limit)[0] == wanted)
rows = [exec(f"def made_{n}():\\n    return bytes({n})\\nmade_{n}()") for n in range(500)]
raise SystemExit(7)
"""
)


def from_outside(words: list[str], limit: int) -> tuple[int, str, str]:
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()
    ) as process:
        assert process.stdout is not None
        wanted = int(process.stdout.readline())
        resource.prlimit(process.pid, limit, (wanted, wanted))
        out, err = process.communicate("\n", timeout=300)
        return process.returncode, out, err


def by_itself(words: list[str], _limit: int) -> tuple[int, str, str]:
    done = run(words, {})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.grid
@pytest.mark.parametrize("name", ["AS", "DATA"])
@pytest.mark.parametrize("how", [by_itself, from_outside], ids=["itself", "outside"])
@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_a_limit_set_during_the_recording(
    tmp_path: Path, name: str, how: Callable[[list[str], int], tuple[int, str, str]], options: tuple[str, ...]
) -> None:
    arguments = ("itself" if how is by_itself else "outside", name)
    words = command(tmp_path, PROGRAM_WITH_A_LATE_LIMIT, recorded=True, options=options, arguments=arguments)
    assert how(words, getattr(resource, "RLIMIT_" + name)) == (7, "True True\n", "")
    capture = hiwater.open(tmp_path / "c.hiw")
    capture.check()
    assert (capture.process.ended, capture.lost_events) == ("exit", 0)


NO_ROOM_FOR_TABLES = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
assert libc.mallopt(M_MMAP_THRESHOLD, 32 << 20) and libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)
heap = [libc.malloc(20 << 20) for _ in range(4)]
for block in heap:
    libc.free(block)
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (4096, hard))  # from now on nobody gets a mapping
blocks = [libc.malloc(200) for _ in range(20_000)]
for block in blocks:
    libc.free(block)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print(len(blocks), None in blocks)
raise SystemExit(8)
"""


def test_without_room_for_tables_the_recording_stops_and_the_program_goes_on(tmp_path: Path) -> None:
    """The heap has room that no small block was in so far, and no mapping can be had."""
    plain = run(command(tmp_path, NO_ROOM_FOR_TABLES, recorded=False), {})
    recorded = run(command(tmp_path, NO_ROOM_FOR_TABLES, recorded=True), {})
    assert (plain.returncode, plain.stdout) == (recorded.returncode, recorded.stdout) == (8, "20000 False\n")
    capture = hiwater.open(tmp_path / "c.hiw")
    capture.check()
    assert capture.process.stop_reason == "no memory for the recorder's tables" and capture.lost_events > 0
    assert "no memory for the recorder's tables" in recorded.stderr


def test_a_limit_too_low_for_a_recording(tmp_path: Path) -> None:
    """What the program has is what hiwater took; it ends as it would under a lower limit, and never by a signal."""
    text = "rows = [str(n) for n in range(1000)]\nprint(len(rows))"
    needed = next(
        n
        for n in range(14, 34, 2)
        if run(command(tmp_path, text, recorded=False), {resource.RLIMIT_AS: n * MIB}).returncode == 0
    )
    for mebibytes in range(needed, needed + 20, 2):
        done = run(command(tmp_path, text, recorded=True), {resource.RLIMIT_AS: mebibytes * MIB})
        if done.returncode == 0:
            assert done.stdout == "1000\n"
            return
        assert done.returncode in (1, 125) and done.stderr, f"{mebibytes} MiB: {done}"
    pytest.fail("a recording of a small program needs more than 18 MiB of address space")


def test_the_error_names_the_limit_and_not_the_file(tmp_path: Path) -> None:
    error = destination.explain(str(tmp_path / "c.hiw"), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    assert "no memory for a recording" in str(error) and "ulimit" in str(error)


@pytest.mark.grid
@pytest.mark.parametrize("handling", ["signal.SIG_DFL", "signal.SIG_IGN", "lambda *_: print('told')"])
@pytest.mark.parametrize("most", [200_000, 3_000_000], ids=["shorter than the capture is", "shorter than it becomes"])
def test_a_limit_of_file_size_is_not_met_by_the_recorder(tmp_path: Path, handling: str, most: int) -> None:
    """The kernel sends SIGXFSZ for a write beyond the limit, which ends a program that does nothing about it."""
    text = f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, {handling})
        resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
        def deep(depth):
            return deep(depth - 1) if depth else [bytearray(600 + i) for i in range(300)]
        made = []
        for number in range(300):
            exec(f"def made_{{number}}():\\n    return deep({{number}})")
            made.append(globals()[f"made_{{number}}"]())
        print(len(made), signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """
    done = subprocess.run(
        command(tmp_path, textwrap.dedent(text), recorded=True), capture_output=True, text=True, check=False,
        env=child_environment(), timeout=300
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "300 set() set()\n"), done.stderr
    assert hiwater.open(tmp_path / "c.hiw").problems() == []
