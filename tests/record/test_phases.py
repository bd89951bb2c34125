"""Markers and phases that a program names: what the capture has of them, what is shown, what they cost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from recording import needs_engine, record

pytestmark = needs_engine

PROGRAM = """
import hiwater

def main():
    hiwater.mark("begin")
    kept = []
    with hiwater.phase("outer"):
        first = bytearray(6_000_000)
        del first
        with hiwater.phase("inner"):
            second = bytearray(3_000_000)
        kept.append(second)
    work()
    work()
    hiwater.mark("end")
    hiwater.phase("open").__enter__()

@hiwater.phase("work")
def work():
    block = bytearray(1_000_000)
"""


def test_phases_have_their_own_peaks(tmp_path: Path) -> None:
    capture = hiwater.open(record(tmp_path, PROGRAM).path)
    assert capture.problems() == []
    by_name = {scope.name: scope for scope in capture.scopes}
    assert [scope.name for scope in capture.scopes] == ["inner", "outer", "work", "work", "open"]
    above = {name: (one.allocated_peak_bytes or 0) - (one.allocated_start_bytes or 0) for name, one in by_name.items()}
    assert 5_990_000 <= above["outer"] < 6_050_000  # what the interpreter frees meanwhile is in it
    assert 2_990_000 <= above["inner"] < 3_050_000
    assert 990_000 <= above["work"] < 1_050_000
    outer = by_name["outer"]
    assert 3_000_000 <= (outer.allocated_end_bytes or 0) - (outer.allocated_start_bytes or 0) < 3_050_000
    assert (by_name["inner"].depth, outer.depth, outer.start_bytes) == (1, 0, None)


def test_markers_have_the_stack_of_their_caller(tmp_path: Path) -> None:
    code = "import hiwater\ndef load(): hiwater.mark('loaded')\nload()"
    run_hiwater("run", "-q", "-o", "run.hiw", "-c", code, folder=tmp_path)
    (marker,) = (one for one in hiwater.open(tmp_path / "run.hiw").markers if one.name)
    assert (marker.kind, marker.name, marker.frames[-1].function) == ("named", "loaded", "load")


def test_reports_show_phases_and_markers(tmp_path: Path) -> None:
    path = record(tmp_path, PROGRAM).path
    brief = run_hiwater("report", str(path), folder=tmp_path).stdout
    assert "Phases" in brief
    assert "outer" in brief
    whole = run_hiwater("report", "--full", str(path), folder=tmp_path).stdout
    assert "the highest of 2" in whole
    assert "Markers" in whole
    assert "begin" in whole
    said = json.loads(run_hiwater("report", "--format", "json", str(path), folder=tmp_path).stdout)
    assert [marker["name"] for marker in said["markers"]] == ["begin", "end"]
    assert said["scopes"][0]["allocated_peak_bytes"] > 3_000_000
    assert run_hiwater("report", "--html", "-o", "page.html", str(path), folder=tmp_path).returncode == 0


def test_a_phase_open_at_the_kill_is_in_the_capture(tmp_path: Path) -> None:
    code = "import os, signal, hiwater\nwith hiwater.phase('last'): os.kill(os.getpid(), signal.SIGKILL)"
    run_hiwater("run", "-q", "-o", "run.hiw", "-c", code, folder=tmp_path)
    (scope,) = hiwater.open(tmp_path / "run.hiw").scopes
    assert (scope.name, scope.allocated_end_bytes) == ("last", None)


@pytest.mark.parametrize("death", ["SIGKILL", "SIGTERM", "exec"])
def test_a_phase_that_ends_by_the_death_of_the_process_shows_its_rise(tmp_path: Path, death: str) -> None:
    """The kernel lets nobody act at a SIGKILL: slices of time and samples tell of what came before."""
    dies = "os.execv('/bin/true', ['true'])" if death == "exec" else f"os.kill(os.getpid(), signal.{death})"
    code = f"""
import os, signal, time, hiwater
before = bytearray(50_000_000); del before
with hiwater.phase("load"):
    gone = bytearray(40_000_000); time.sleep(0.05); del gone
    kept = bytearray(30_000_000); time.sleep(0.1)
    {dies}
"""
    run_hiwater("run", "-q", "-o", "run.hiw", "-c", code, folder=tmp_path)
    (phase,) = hiwater.open(tmp_path / "run.hiw").scopes
    assert 40_000_000 <= (phase.allocated_peak_bytes or 0) < 42_000_000
    rise = (phase.allocated_last_bytes or 0) - (phase.allocated_start_bytes or 0)
    assert abs(rise - 30_000_000) < 500_000
    text = run_hiwater("report", "run.hiw", folder=tmp_path, check=True).stdout
    assert "kept 28.6 MiB so far: it did not end" in text


def test_phases_share_the_peaks_with_scopes(tmp_path: Path) -> None:
    """`track()` reads and resets the same peaks, whichever begins or ends first."""
    code = """
import hiwater
with hiwater.phase("around"):
    with hiwater.track("inside") as inside:
        block = bytearray(4_000_000); del block
    with hiwater.track("second") as second:
        with hiwater.phase("within"): block = bytearray(2_000_000); del block
print(inside.usage.heap.peak_above_start_bytes, second.usage.heap.peak_above_start_bytes)
"""
    done = run_hiwater("run", "-q", "-o", "run.hiw", "-c", code, folder=tmp_path)
    inside, second = map(int, done.stdout.split())
    assert 3_990_000 <= inside < 4_300_000
    assert 1_990_000 <= second < 2_300_000
    peaks = {
        scope.name: (scope.allocated_peak_bytes or 0) - (scope.allocated_start_bytes or 0)
        for scope in hiwater.open(tmp_path / "run.hiw").scopes
    }
    assert 4_000_000 <= peaks["around"] < 5_500_000
    assert 1_990_000 <= peaks["within"] < 2_300_000


def test_a_million_markers_do_not_fill_the_capture(tmp_path: Path) -> None:
    program = """
    import hiwater
    def main():
        for number in range(60_000):
            hiwater.mark(f"request {number}")
            with hiwater.phase(f"request {number}"): pass
    """
    recorded = record(tmp_path, program)
    capture = hiwater.open(recorded.path)
    assert recorded.path.stat().st_size < 4_000_000
    assert len([marker for marker in capture.markers if marker.name]) == 10_000
    assert len(capture.scopes) == 10_000
    assert len({scope.name for scope in capture.scopes}) <= 1001
    assert capture.tables.header["scopes"] == capture.tables.header["named_markers"] == 60_000
    shown = run_hiwater("report", "--full", str(recorded.path), folder=tmp_path).stdout
    assert "of 60,000 phases the last 10,000 are kept" in shown


def test_without_a_recording_nothing_happens_and_costs_nothing() -> None:
    @hiwater.phase("call")
    async def answer() -> int:
        return 42

    assert asyncio.run(answer()) == 42
    marked = phased = 1.0
    for _ in range(200):  # the fastest of some: the machine has other work
        began = time.perf_counter()
        for _ in range(1000):
            hiwater.mark("x")
        middle = time.perf_counter()
        for _ in range(1000):
            with hiwater.phase("x"):
                pass
        marked, phased = min(marked, middle - began), min(phased, time.perf_counter() - middle)
    # A third of a microsecond on a quiet machine: this finds costs of another order.
    assert marked / 1000 < 5e-6
    assert phased / 1000 < 5e-6


def test_the_engine_that_another_thread_is_loading_is_not_there_yet() -> None:
    """While a module is loaded, `sys.modules` has it already, without its functions."""
    code = (
        "import importlib.util, sys, hiwater\n"
        "from hiwater import meters\n"
        "from hiwater._os.native import unrecorded\n"
        "spec = importlib.util.find_spec('json')\n"
        "spec._initializing = True\n"
        "sys.modules['hiwater._core'] = importlib.util.module_from_spec(spec)\n"
        "hiwater.mark('a')\n"
        "with hiwater.phase('b'): pass\n"
        "assert unrecorded(max, 1, 2) == 2\n"
        "meter = meters.create('resident')\n"
        "meter.open()\n"
        "assert meter.read_and_reset()[0] > 0\n"
        "meter.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
