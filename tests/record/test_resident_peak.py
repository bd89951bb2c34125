"""The resident peak of a recorded program is what the kernel says of the plain one, and the end of a recording needs
no memory."""

import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
from children import hiwater_command, run_hiwater, run_python
from hiwater.analysis.check import measured
from places import HELPERS
from recording import child_environment, needs_engine

pytestmark = needs_engine

MIB = 2**20
# Says what the kernel's peak is, at the program's end. An editable installation imports importlib.util before the first
# line of hiwater runs: so does the plain program.
TELLS = """
import importlib.util
def tell():
    with open("/proc/self/status") as status:
        print(int(status.read().split("VmHWM:")[1].split()[0]) * 1024, flush=True)
"""
BEFORE = "kept = [str(i) for i in range(600_000)]; del kept; block = bytearray(120 << 20)"
AT = "kept = [(i,) for i in range(700_000)]"
AFTER = """
import time
block = bytearray(150 << 20); time.sleep(0.05); del block
kept = [str(i) for i in range(700_000)]
"""
# Its capture is several MiB, and most of it is of call paths that are met once.
CALL_PATHS = """
import random
random.seed(1)
def one(n): return [n] if n <= 0 else [random.choice((one, two, three))(n - 1), str(n)]
def two(n): return (n,) if n <= 0 else {n: random.choice((one, two, three))(n - 1)}
def three(n): return {n} if n <= 0 else [random.choice((one, two, three))(n - 1)]
kept = [one(random.randint(3, 12)) for _ in range(16_000)]
"""
RECALLED = CALL_PATHS + "del kept; block = bytearray(60 << 20)"
FORKED = """
import os
inherited = [str(i) for i in range(200_000)]
if os.fork():
    os.wait()
    os._exit(0)
block = bytearray(100 << 20); del block
kept = [str(i) for i in range(300_000)]
"""


def plain_peak(program: Path) -> int:
    done = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, check=True, text=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    "text", [BEFORE, AT, AFTER, RECALLED, FORKED], ids=["before", "at", "after", "recalled", "forked"]
)
def test_the_peak_is_the_plain_programs_wherever_the_tables_grow(tmp_path: Path, text: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{TELLS}{text}\ntell()\n")
    truth = plain_peak(program)
    run = recorded(program)
    capture = run.captures[-1]
    resident = capture.resident
    assert abs(resident.program_peak_bytes - truth) <= resident.error_bytes, (resident, truth)
    assert resident.overhead_bytes > MIB
    if not text.startswith(FORKED[:5]):
        assert measured(run).entry.figures["resident_bytes"] == resident.program_peak_bytes
    highest = int(capture.timeline.resident_bytes.max())
    assert highest <= resident.program_peak_bytes + resident.error_bytes
    assert capture.timeline.overhead_bytes.max() >= resident.overhead_bytes / 2


def test_it_is_that_also_where_the_kernel_does_not_put_pages_ahead(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{TELLS}{AT}\ntell()\n")
    truth = plain_peak(program)
    run = (HELPERS / "older_kernel.py", "-m", "hiwater", "run", "-q", "-o", tmp_path / "c.hiw", program)
    assert run_python(*run, env=child_environment()).returncode == 0
    resident = hiwater.open(tmp_path / "c.hiw").resident
    assert abs(resident.program_peak_bytes - truth) <= resident.error_bytes, (resident, truth)


def test_an_arena_that_was_given_back_before_the_peak_is_part_of_the_error(tmp_path: Path) -> None:
    objects, block = "kept = [str(i) for i in range(300_000)]; del kept", "block = bytearray(80 << 20); del block"
    smallest = [
        min(error_of(tmp_path / f"{at}.py", text) for _ in range(3))
        for at, text in enumerate((f"{block}; {objects}", f"{objects}; {block}"))
    ]
    assert MIB // 2 < smallest[1] - smallest[0] < 3 * MIB // 2


def error_of(program: Path, text: str) -> int:
    program.write_text(text)
    return recorded(program).captures[-1].resident.error_bytes


def recorded(program: Path) -> hiwater.capture.Run:
    path = program.with_suffix(".hiw")
    run_hiwater("run", "-q", "-o", path, program, check=True)
    return hiwater.open_run(path)


def test_the_breakdown_has_the_same_overhead(tmp_path: Path) -> None:
    program, path = tmp_path / "program.py", tmp_path / "c.hiw"
    program.write_text(AT + "\nimport time; time.sleep(0.5)\n")
    assert run_hiwater("run", "-q", "-o", path, program).returncode == 0
    capture = hiwater.open(path)
    snapshot = capture.residency_snapshots[-1]
    part = next(part for part in snapshot.parts if part.name == "hiwater's overhead")
    place = min(len(capture.timeline) - 1, int(capture.timeline.at_ns.searchsorted(snapshot.at_ns)))
    assert part.resident_bytes == pytest.approx(int(capture.timeline.overhead_bytes[place]), abs=MIB)


def test_the_end_of_a_recording_needs_little_memory(tmp_path: Path) -> None:
    program, path = tmp_path / "program.py", tmp_path / "c.hiw"
    program.write_text(f"{TELLS}{CALL_PATHS.replace('16_000', '32_000')}\ntell()\n")
    # A small process starts it: a process begins with the high-water mark of the one that started it.
    starts = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    words = [sys.executable, "-c", starts, *hiwater_command("run", "-q", "-o", path, program)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=child_environment())
    before, highest_kib = map(int, done.stdout.split())
    tables = hiwater.open(path).tables
    assert tables["accounts"].nbytes + tables["nodes"].nbytes > 5 * MIB
    assert highest_kib * 1024 - before <= 4 * MIB


DIES = """
import multiprocessing, os, signal, time
def work(seconds):
    block = bytearray(60 << 20)
    time.sleep(seconds)
    with open(f"truth.{os.getpid()}", "w") as file, open("/proc/self/status") as status:
        file.write(status.read().split("VmHWM:")[1].split()[0])
    os.kill(os.getpid(), signal.SIGKILL)
workers = [multiprocessing.get_context("fork").Process(target=work, args=(after,)) for after in (0.02, 0.1, 0.4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""


def test_the_peak_of_a_killed_worker_is_a_lower_bound_and_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DIES)
    done = run_hiwater("run", "-q", "-o", "c.hiw", "program.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = hiwater.open_run(tmp_path / "c.hiw")
    workers = run.captures[1:]
    assert len(workers) == 3
    table = run_hiwater("report", "c.hiw", folder=tmp_path).stdout
    for worker in workers:
        resident, truth = worker.resident, int((tmp_path / f"truth.{worker.process.pid}").read_text()) * 1024
        assert worker.process.ended == "killed"
        assert not resident.exact, resident
        # The truth has hiwater's own memory.
        assert resident.program_peak_bytes <= truth - resident.overhead_bytes + resident.error_bytes, (resident, truth)
        row = next(line for line in table.splitlines() if f"{worker.process.pid} on " in line and "killed (" in line)
        assert "≥ " in row, row
    # The first process has read what the last one had.
    last = max(workers, key=lambda one: one.process.duration_ns)
    assert last.resident.program_peak_bytes >= 60 * MIB, last.resident
    report = run_hiwater("report", "c.hiw", "--pid", str(last.process.pid), folder=tmp_path).stdout
    assert "at least: as last read before it was killed" in report, report
