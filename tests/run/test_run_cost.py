"""What hiwater costs a program before it records: a light import, and a start that is hardly felt."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
from hiwater import errors
from places import HELPERS, ROOT

# What `hiwater run` may load beside itself: small parts of the interpreter.
ALLOWED = {"__future__", "_json", "atexit", "errno", "gc", "hiwater"}


def milliseconds(command: list[str], folder: Path) -> float:
    """The processor's time: what a command waits for depends on all that runs beside it."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    done = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (done.ru_utime + done.ru_stime - began.ru_utime - began.ru_stime) * 1000


def test_importing_takes_little_time_and_memory(tmp_path: Path) -> None:
    program = """
import sys, time
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before, began = resident(), time.process_time()
import hiwater
print(time.process_time() - began, resident() - before)
"""
    runs = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        runs.append(tuple(map(float, done.stdout.split())))
    seconds, held = min(runs)
    assert seconds <= 0.015
    assert held <= 3e6


def loaded(words: list[str], folder: Path, first: str = "pass") -> set[str]:
    """The modules loaded in a program that prints them, but for those it may load; `first` is done before."""
    # Without site: an editable installation has an import hook of its own, which loads much. But os is there always.
    environment = {**os.environ, "PYTHONPATH": str(Path(hiwater.__file__).parents[1])}
    command = [sys.executable, "-S", *words, "-c", f"import os, sys; {first}; print(*sys.modules)"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name.partition(".")[0] not in ALLOWED}


def test_the_path_to_the_program_loads_nothing_heavy(tmp_path: Path) -> None:
    double = str(HELPERS / "engine_double.py")
    added = loaded([double, "works", "run", "-q"], tmp_path) - loaded([], tmp_path)
    assert not added


def test_a_run_loads_no_more_of_hiwater_than_it_needs(tmp_path: Path) -> None:
    pytest.importorskip("hiwater._core", reason="built without the engine")
    rare = {
        "hiwater.capture", "hiwater.recording.last_lines", "hiwater.recording.window", "hiwater._os.ascii_text",
        "hiwater._os.portable", "hiwater._os.sizes",
    }  # fmt: skip
    program = "import sys; print(*sys.modules)"
    for quiet, unneeded in ((["-q"], rare), ([], rare - {"hiwater.recording.last_lines", "hiwater._os.sizes"})):
        words = [sys.executable, "-m", "hiwater", "run", *quiet, "-o", "run.hiw", "-c", program]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "hiwater.recording.recorder" in done.stdout
        assert not unneeded & set(done.stdout.split())


def test_an_error_that_is_caught_on_the_way_loads_no_more(tmp_path: Path) -> None:
    """As where no cgroup can be read."""
    added = loaded([], tmp_path, "import hiwater; hiwater.errors.MeterUnavailable") - loaded([], tmp_path)
    assert not added


@pytest.mark.parametrize("how", ["children", "standby"])
def test_a_program_that_starts_recorded_or_in_standby_loads_nothing_heavy(how: str, tmp_path: Path) -> None:
    """Started without site, as above: then it calls by itself what an installation calls."""
    engine = pytest.importorskip("hiwater._core", reason="built without the engine")
    start = pytest.importorskip("_hiwater_startup")
    program = f"""
import os, sys
before = {{*sys.modules, *{ALLOWED}, "_hiwater_startup"}}
import hiwater
hiwater.__path__.append({os.path.dirname(engine.__file__)!r})
sys.path.append({os.path.dirname(start.__file__)!r})
import _hiwater_startup
_hiwater_startup.start()
print(*(name for name in sys.modules if name.partition(".")[0] not in before))
begun = sys.modules["hiwater.recording.{how}"]
assert begun._running if {how!r} == "children" else begun._program
"""
    command = [sys.executable, "-S", "-c", program]
    if how == "children":
        parent = f"import subprocess; subprocess.run({command}, check=True)"
        command = [sys.executable, "-m", "hiwater", "run", "-q", "-o", "run.hiw", "-c", parent]
    environment = {**os.environ, "PYTHONPATH": str(Path(hiwater.__file__).parents[1]), "HIWATER": "standby"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_recording_nothing_starts_and_ends_soon(tmp_path: Path) -> None:
    pytest.importorskip("hiwater._core", reason="built without the engine")
    plain_command = [sys.executable, "-c", "pass"]
    command = [sys.executable, "-m", "hiwater", "run", "-o", "pass.hiw", "-c", "pass"]
    pairs = [(milliseconds(plain_command, tmp_path), milliseconds(command, tmp_path)) for _ in range(11)]
    plain, recorded = map(min, zip(*pairs, strict=True))  # the least of the runs: other load only adds to it
    assert recorded - plain <= 300  # 30 on a quiet machine: this finds costs of another order


def test_every_error_has_its_entry_in_the_manual() -> None:
    manual = ROOT / "docs" / "errors.md"
    entries = {line[3:].strip() for line in manual.read_text().splitlines() if line.startswith("## ")}
    classes = [errors.HiwaterError]
    for kind in classes:
        classes += kind.__subclasses__()
    slugs = [kind.slug for kind in classes if kind not in (errors.HiwaterError, errors.CaptureError)]
    assert len(slugs) == len(set(slugs))
    assert entries == set(slugs)
