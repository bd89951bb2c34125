"""Sums of common programs with several processes: a pool that works one task at a time, workers that peak in turn,
workers that all hold at once."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from hiwater.cli import main
from hiwater.report.formatting import size as size_words
from hiwater.report.request import Report
from page_reader import Page, page_of
from process_trees import MIB, PROGRAM, Spec, check_resident, record, watch
from recording import needs_engine

pytestmark = needs_engine


def turns(sizes: tuple[int, ...], *, all_wait: bool) -> Spec:
    """Forked processes that hold so many MiB one after the other, each once the one before has let go; then they
    stay until all are done, or end."""
    steps: list[list[object]] = []
    for turn, size in enumerate(sizes):
        work = [["wait", turn], ["hold", size], ["let_go", 0], ["tell", turn + 1]]
        steps.append(["fork", {"steps": [*work, *([["wait", 100 + turn]] if all_wait else [])]}])
    ends = [["tell", 100 + turn] for turn in range(len(sizes))] if all_wait else []
    return {"steps": [["hold", 15], *steps, ["sleep", 200], ["tell", 0], ["wait", len(sizes)], *ends, ["join", 0]]}


@pytest.mark.parametrize("all_wait", [True, False], ids=["stay", "end"])
def test_workers_that_peak_in_turn_are_not_added_up(tmp_path: Path, all_wait: bool) -> None:
    """They wait before and after their turns: what each holds then is little, and the bound knows it."""
    path, truth = record(turns((50, 70, 60), all_wait=all_wait), tmp_path)
    run = hiwater.open_run(path)
    (machine,) = run.machines
    allocated, resident = machine.allocated, machine.resident
    assert allocated is not None and allocated.at_most_bytes is not None and resident is not None
    assert 85 * MIB == truth.held_least_bytes <= allocated.bytes <= allocated.at_most_bytes <= 90 * MIB
    check_resident(run, truth)
    assert main(["check", str(path), "--peak", "90MiB"]) == 0
    assert main(["check", str(path), "--peak", "84MiB"]) == 1


def test_workers_that_hold_and_sleep_are_in_the_resident_sum(tmp_path: Path) -> None:
    """They hold from their first moments on and wait until they end, so none of them has a thread of the recorder's."""
    children = [["fork", {"steps": [["hold", size], ["sleep", 900], ["let_go", 0]]}] for size in (20, 40, 60)]
    path, truth = record({"steps": [["hold", 30], *children, ["hold", 10], ["sleep", 600]]}, tmp_path)
    run = hiwater.open_run(path)
    (machine,) = run.machines
    allocated, resident = machine.allocated, machine.resident
    assert allocated is not None and resident is not None
    assert 160 * MIB <= allocated.bytes <= 165 * MIB and allocated.at_most_bytes == pytest.approx(
        160 * MIB, abs=5 * MIB
    )
    check_resident(run, truth)
    # How large the stated error is depends on the moment: when a child ends before the others have read their shared
    # pages again, these are not known, and the sum may have been higher.
    assert 160 * MIB <= resident.bytes <= 180 * MIB


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_the_resident_sum_is_that_of_the_program_without_hiwater(tmp_path: Path, how: str) -> None:
    """Compared with the kernel's PSS of a plain run: each process goes on when it is told to, so both hold the same
    at once."""
    children = [[how, {"steps": [["hold", size], ["tell", size], ["wait", 100 + size]]}] for size in (10, 20, 40)]
    meet = [["wait", 10], ["wait", 20], ["wait", 40], ["sleep", 300], ["tell", 110], ["tell", 120], ["tell", 140]]
    spec: Spec = {"steps": [["hold", 30], *children, *meet, ["join", 0]]}
    (tmp_path / "plain").mkdir()
    plain = watch([sys.executable, PROGRAM], spec, tmp_path / "plain")
    path, _ = record(spec, tmp_path)
    (machine,) = hiwater.open_run(path).machines
    resident = machine.resident
    assert resident is not None
    allowed = 2 * MIB + plain.pss_most_bytes // 50 + resident.error_bytes
    assert plain.pss_least_bytes - allowed <= resident.bytes <= plain.pss_most_bytes + allowed


def test_a_process_that_waits_is_read_again_once_a_program_it_started_has_loaded_its_libraries(tmp_path: Path) -> None:
    child = ["spawn", {"steps": [["hold", 10], ["tell", 0], ["wait", 1]]}]
    path, _ = record({"steps": [["sleep", 60], child, ["wait", 0], ["sleep", 150], ["tell", 1], ["join", 0]]}, tmp_path)
    waits, started = hiwater.open_run(path).captures
    own, began = waits.relatives[waits.process.pid], started.process.started_unix_ns
    is_meanwhile = (own.at_unix_ns > began) & (own.at_unix_ns < began + started.process.duration_ns)
    assert int(own.mapped_excess_bytes[is_meanwhile].max(initial=0)) > 3 * MIB  # 1 MiB before and after


SHELL = """\
import subprocess, sys
program = "held = bytearray(b'1') * (20 << 20); import time; time.sleep(0.4)"
shell = subprocess.Popen(["sh", "-c", 'for each in 1 2 3; do "$0" -c "$1" & done; wait', sys.executable, program])
held = bytearray(b"2") * (20 << 20)
shell.wait()
"""


def test_programs_that_a_shell_starts_are_read_with_the_others(tmp_path: Path) -> None:
    """They and the first process share the interpreter's libraries, some 6 MiB, which count once."""
    (tmp_path / "shell.py").write_text(SHELL)
    run_hiwater("run", "-q", "-o", "run.hiw", "shell.py", folder=tmp_path, check=True)
    run = hiwater.open_run(tmp_path / "run.hiw")
    (machine,) = run.machines
    instant = machine.resident
    assert instant is not None and instant.processes == instant.shared_once == 4
    assert {capture.process.pid for capture in run.captures} <= {*run.captures[0].relatives}


POOL = """\
import multiprocessing, time

def job(number):
    held = bytearray(b"1") * (64 << 20)
    time.sleep(0.1)
    return len(held)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        for number in range(6):
            pool.apply(job, (number,))
"""


def test_a_pool_that_does_one_task_at_a_time_holds_one(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    run_hiwater("run", "-q", "-o", tmp_path / "run.hiw", tmp_path / "pool.py", check=True)
    (machine,) = hiwater.open_run(tmp_path / "run.hiw").machines
    allocated = machine.allocated
    assert allocated is not None and allocated.at_most_bytes is not None
    assert 64 * MIB <= allocated.bytes <= allocated.at_most_bytes <= 75 * MIB
    assert main(["check", str(tmp_path / "run.hiw"), "--peak", "120MiB"]) == 0


def test_what_a_child_copies_before_it_ends_is_in_the_resident_sum(tmp_path: Path) -> None:
    """It ends long before its shared pages were to be read again."""
    child = [["sleep", 150], ["objects", 1], ["sleep", 20], ["rewrite", 0]]
    path, truth = record({"steps": [["hold", 80], ["sleep", 100], ["fork", {"steps": child}], ["join", 0]]}, tmp_path)
    assert truth.pss_least_bytes > 170 * MIB
    check_resident(hiwater.open_run(path), truth)


def test_a_fork_of_a_fork_has_inherited_what_both_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    innermost = [["hold", 5], ["sleep", 300]]
    inner = [["hold", 10], ["fork", {"steps": innermost}], ["join", 0]]
    path, truth = record({"steps": [["hold", 20], ["fork", {"steps": inner}], ["join", 0]]}, tmp_path)
    run = hiwater.open_run(path)
    inherited = {capture.process.pid: capture.process.inherited_bytes for capture in run.captures}
    own = [capture.peak_bytes for capture in run.captures]
    for found, mib in ((inherited.values(), (0, 20, 30)), (own, (20, 10, 5))):
        assert [count / MIB for count in found] == pytest.approx(mib, abs=3)
    (machine,) = run.machines
    assert machine.allocated is not None and 35 * MIB == truth.held_least_bytes <= machine.allocated.bytes <= 37 * MIB
    check_resident(run, truth)
    assert main(["report", str(path)]) == 0
    table = capsys.readouterr().out
    assert main(["report", str(path), "--format", "json"]) == 0
    (child,) = json.loads(capsys.readouterr().out)["children"]
    (grandchild,) = child["children"]
    page = Page(page_of([Report(capture, "peak", run=run) for capture in run.captures]))
    assert {row["pid"]: row["inherited_bytes"] for row in page.unpacked.head["run"]["processes"]} == inherited
    for one in (child, grandchild):
        process = one["process"]
        assert process["inherited_bytes"] == inherited[process["pid"]]
        assert re.search(rf"{re.escape(size_words(process['inherited_bytes']))}  {process['pid']} ", table)
