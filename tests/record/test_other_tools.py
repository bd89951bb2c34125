"""Other tools in a recorded process: those that exchange call slots, keep descriptors, or close all they find. What
they do goes by us, and what we do by them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import compiled
import hiwater
from children import run_hiwater
from recording import child_environment, needs_engine

pytestmark = needs_engine


def run_recorded(folder: Path, text: str, *words: str) -> str:
    """What the program prints; recorded, it must print what it prints without hiwater."""
    (folder / "program.py").write_text(text)
    plain = subprocess.run(
        [sys.executable, "program.py", *words], cwd=folder, env=child_environment(), capture_output=True, text=True,
        check=True, timeout=300
    )  # fmt: skip
    recorded = run_hiwater("run", "-q", "-o", "run.hiw", "program.py", *words, folder=folder)
    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (0, plain.stdout, plain.stderr)
    return recorded.stdout


def test_our_memory_and_files_go_through_no_slot(tmp_path: Path) -> None:
    code = f"""
import ctypes, os, sys, time
import hiwater._core as core
tool = ctypes.CDLL({str(compiled.library("exchanged"))!r})
print(tool.exchange_slots_of(b"/_core."))
core.start({str(tmp_path / "run.hiw")!r}, facts={{}}, internal_prefix="/nowhere")
kept = [[bytearray(100) for _ in range(1000)] for _ in range(200)]  # tables grow
big = bytearray(150 << 20)  # a residency snapshot
time.sleep(0.1)
del big, kept
core.snapshot({str(tmp_path / "snapshot.hiw")!r})
core.stop(0)
print(tool.calls_so_far())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "0"]


NUMBERS = """
import os, sys, time
same = True
kept = []
until = time.monotonic() + 0.7
while time.monotonic() < until:
    for number in (0, 3):
        if number: os.close(os.open("/dev/null", os.O_RDONLY))
        else: os.close(0)
        made = os.open("/dev/zero", os.O_RDONLY)
        same = same and made == number
        if number: os.close(made)
    kept.append(bytes(200_000))  # samples and snapshots meanwhile
print(same)
"""


def test_the_lowest_numbers_are_the_programs_at_any_moment(tmp_path: Path) -> None:
    assert run_recorded(tmp_path, NUMBERS) == "True\n"


def test_our_thread_sees_the_programs_table(tmp_path: Path) -> None:
    text = f"""
import os, threading, time
import hiwater._core as core
core.start({str(tmp_path / "run.hiw")!r}, facts={{}}, internal_prefix="/nowhere")
time.sleep(0.1)
threads = [t for t in os.listdir("/proc/self/task") if open(f"/proc/self/task/{{t}}/comm").read() == "hiwater\\n"]
def files(of):
    return {{(n, os.readlink(f"{{of}}/{{n}}")) for n in os.listdir(of) if int(n) != 3}}
print(len(threads), all(files(f"/proc/self/task/{{t}}/fd") == files("/proc/self/fd") for t in threads))
core.stop(0)
print(sum(int(n) > 3 for n in os.listdir("/proc/self/fd")))
"""
    done = subprocess.run(
        [sys.executable, "-c", text], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "True", "0"]


CLOSES_ALL = """
import os, sys, time
os.closerange(3, 4096)
with open("theirs", "wb") as file: file.write(b"theirs\\n" * 20_000)
first = os.open("theirs", os.O_RDWR)
wanted = sys.argv[1:] == ["all"]
numbers = [n for n in range(40, 760) if wanted]
for number in numbers: os.dup2(first, number)
about = os.fstat(first)
kept = [[bytearray(100) for _ in range(1000)] for _ in range(300)]
big = bytearray(200 << 20)
for at in range(0, len(big), 4096): big[at] = 1
time.sleep(0.3)
del big
print(all(os.path.samestat(os.fstat(number), about) for number in numbers), os.lseek(first, 0, os.SEEK_CUR))
os.close(first)
print(open("theirs", "rb").read() == b"theirs\\n" * 20_000)
"""


@pytest.mark.parametrize("taken", ["none", "all"])
def test_a_program_that_closes_every_descriptor_keeps_its_files_and_its_figures(tmp_path: Path, taken: str) -> None:
    assert run_recorded(tmp_path, CLOSES_ALL, taken) == "True 0\nTrue\n"
    assert max(hiwater.open(tmp_path / "run.hiw").timeline.resident_bytes) >= 200 << 20


@pytest.mark.skipif(importlib.util.find_spec("memray") is None, reason="memray is not installed")
@pytest.mark.parametrize(
    "options", ["", "native_traces=True, follow_fork=True", "native_traces=True, trace_python_allocators=True"]
)
def test_a_tracker_of_memray_inside(tmp_path: Path, options: str) -> None:
    text = f"""
import os, memray
keep = []
def part(n): keep.append([bytearray(1000) for _ in range(n)])
part(1000)
with memray.Tracker("inside.bin", {options}): part(2000)
part(3000)
found = memray.FileReader("inside.bin").get_high_watermark_allocation_records()
print(sum(record.n_allocations for record in found) > 1000, sum(map(len, keep)))
os.unlink("inside.bin")
os.write(2, b"still open\\n")
"""
    assert run_recorded(tmp_path, text) == "True 6000\n"


def test_a_tool_below_us_in_pythons_allocators_may_look_for_itself_there_and_leave(tmp_path: Path) -> None:
    code = f"""
import ctypes
import hiwater
tool = ctypes.PyDLL({str(compiled.library("returning"))!r})
print(tool.put_in_place())
with hiwater.record({str(tmp_path / "run.hiw")!r}):
    print(tool.put_in_place(), tool.put_in_place())
    before = tool.calls_so_far()
    kept = [object() for _ in range(10_000)]
    print(tool.calls_so_far() - before >= 10_000)
    tool.leave()
    before = tool.calls_so_far()
    kept += [object() for _ in range(10_000)]
    print(tool.calls_so_far() - before)
del kept
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "0", "0", "True", "0"]
    capture = hiwater.open(tmp_path / "run.hiw")
    assert (capture.problems(), capture.shortcomings) == ([], [])
    assert capture.peak.allocated_bytes >= 20_000 * 16


@pytest.mark.parametrize("sample", [None, "64KiB"])
def test_a_tool_between_us_and_another_may_leave(tmp_path: Path, sample: str | None) -> None:
    shutil.copy(compiled.library("returning"), tmp_path / "lower.so")
    code = f"""
import ctypes
import hiwater
lower, upper = (ctypes.PyDLL(path) for path in ({str(tmp_path / "lower.so")!r}, {str(compiled.library("returning"))!r}))
lower.put_in_place()
upper.put_in_place()
with hiwater.record({str(tmp_path / "run.hiw")!r}, sample={sample!r}):
    kept = [object() for _ in range(10_000)]
    upper.leave()
    before = lower.calls_so_far()
    kept += [bytearray(number % 700) for number in range(10_000)]
    kept.clear()
print(lower.calls_so_far() - before >= 10_000, lower.foreign_contexts_so_far(), upper.foreign_contexts_so_far())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "0", "0"]
