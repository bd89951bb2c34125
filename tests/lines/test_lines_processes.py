"""`@profile` in programs of several processes: each child knows it, however it was started, and its figures are in
the report, however it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from children import run_hiwater
from hiwater.contrib.compat.drop_ins import folder
from recording import child_environment, needs_engine

pytestmark = needs_engine

POOL = """
import multiprocessing, sys
@profile
def work(n):
    rows = [bytes(1000) for _ in range(n)]
    return len(rows)
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:  # which ends its workers with a signal
        print(pool.map(work, [100, 200, 300], chunksize=1))
"""


def functions(folder: Path, text: str, *words: str) -> dict[str, dict[str, Any]]:
    """The functions of the JSON report on the program `text`, by name; its own output goes to `output`."""
    (folder / "program.py").write_text(text)
    done = run_hiwater("lines", "--format", "json", "-o", "lines.json", "program.py", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    (folder / "output").write_text(done.stdout)
    return {function["name"]: function for function in json.loads((folder / "lines.json").read_text())["functions"]}


def allocated(function: dict[str, Any]) -> int:
    return sum(line["allocated_bytes"] for line in function["lines"])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_pool_are_in_the_report(tmp_path: Path, method: str) -> None:
    work = functions(tmp_path, POOL, method)["work"]
    assert (tmp_path / "output").read_text() == "[100, 200, 300]\n"
    assert work["calls"] == 3
    assert work["child_processes"] in (1, 2)  # one worker may have been quick enough for all
    assert next(line["calls"] for line in work["lines"] if line["line"] == 6) == 3
    assert 600 * 1033 <= allocated(work) < 600 * 1033 + 60_000


def test_parent_and_children_are_added_and_what_ran_before_the_fork_counts_once(tmp_path: Path) -> None:
    text = """
import os, signal
@profile
def work(n):
    return len(bytearray(n))
work(1_000_000)
for ending in (lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: None):
    if os.fork() == 0:
        work(20_000_000)
        if os.fork() == 0:
            work(300_000_000)
            os._exit(0)
        os.wait()
        ending()
        os._exit(0)
    os.wait()
"""
    work = functions(tmp_path, text)["work"]
    assert (work["calls"], work["child_processes"]) == (7, 6)
    assert 961_000_000 <= allocated(work) < 961_100_000
    assert 300_000_000 <= work["lines"][-1]["peak_bytes"] < 300_100_000


def test_another_program_knows_profile_and_only_what_it_ran_is_added(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "@profile\ndef there(): return bytearray(1000)\n@profile\ndef idle(): pass\nthere(); there()\n"
    )
    text = (
        "import subprocess, sys\n@profile\ndef here(): pass\nsubprocess.run([sys.executable, 'other.py'], check=True)"
    )
    found = functions(tmp_path, text)
    assert {name: (f["calls"], f["child_processes"]) for name, f in found.items()} == {"here": (0, 0), "there": (2, 1)}


def test_a_child_while_a_marked_function_runs(tmp_path: Path) -> None:
    text = """
import os
@profile
def both():
    child = os.fork()
    kept = bytearray(1_000_000)
    if child == 0:
        os._exit(len(kept) % 251)
    os.wait()
both()
"""
    lines = {line["line"]: line for line in functions(tmp_path, text)["both"]["lines"]}
    assert (lines[5]["calls"], lines[6]["calls"], lines[9]["calls"]) == (1, 2, 1)
    assert 2_000_000 <= lines[6]["allocated_bytes"] < 2_010_000


def test_the_decorator_alone_adds_forked_children(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import hiwater, os\n@hiwater.profile\ndef work(): return bytearray(5_000_000)\n"
        "if os.fork() == 0:\n    work(); os._exit(0)\nos.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=child_environment({"TMPDIR": str(tmp_path)}), check=True,
        capture_output=True, text=True
    )  # fmt: skip
    assert "with the calls of 1 child process\n" in done.stderr
    assert "4.8 MiB" in done.stderr
    assert os.listdir(tmp_path) == ["program.py"]  # the folder of their figures is gone


def test_children_under_the_memory_profiler_know_profile(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(POOL)
    environment = child_environment({"PYTHONPATH": folder()})
    done = subprocess.run(
        [sys.executable, "-m", "memory_profiler", "program.py", "spawn"],
        cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "[100, 200, 300]" in done.stdout
