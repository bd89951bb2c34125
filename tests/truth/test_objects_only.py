"""The engine that records Python's objects alone (`-DHIWATER_HOOKS=python`), built here with the layer for any POSIX
system: what it records is right, and it says what it does not see."""

import json
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT
from recording import Recorded, child_environment, needs_engine, record
from traced_programs import PROGRAMS, by_line, lines_that_differ, text_of, under_tracemalloc

pytestmark = [
    needs_engine,
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake builds the engine"),
]
BUILT = ROOT / "build" / f"objects-only-{sys.implementation.cache_tag}"
# The other engine's installation would be found first: without `site` there is none.
WITHOUT_SITE = ("-S",)


@pytest.fixture(scope="module")
def engine() -> dict[str, str]:
    """The environment in which it is found."""
    subprocess.run([sys.executable, ROOT / "tools" / "objects_only.py", "build", BUILT], check=True, timeout=900)
    return {"PYTHONPATH": ":".join([str(BUILT), *site.getsitepackages()])}


def recorded_by(engine: dict[str, str], folder: Path, text: str, sample_bytes: int = 0) -> Recorded:
    folder.mkdir(exist_ok=True)
    return record(folder, text, environment=engine, options=WITHOUT_SITE, sample_bytes=sample_bytes)


def test_ten_programs_agree_with_tracemalloc_line_by_line(tmp_path: Path, engine: dict[str, str]) -> None:
    program = "".join(f"import {name}_\n" for name in PROGRAMS) + "def main():\n"
    program += "".join(f"    {name}_.main()\n" for name in PROGRAMS)
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        folder.mkdir()
        for name in PROGRAMS:
            (folder / f"{name}_.py").write_text(text_of(name))
    theirs = under_tracemalloc(tmp_path / "theirs", program)
    recorded = recorded_by(engine, tmp_path / "ours", program)
    at_peak = recorded.capture.stacks("peak")
    assert {stack.kind for stack in at_peak} == {"python"}
    assert sum(stack.bytes for stack in at_peak) == pytest.approx(theirs["peak"], rel=0.01)
    assert len(PROGRAMS) == 10
    for name in PROGRAMS:
        assert any(place.startswith(f"@/{name}_.py:") and size >= 10_000 for place, size in theirs["lines"].items())
    assert lines_that_differ(by_line(recorded, recorded.capture.stacks("end")), theirs["lines"]) == {}


def test_a_sampled_recording_sees_what_is_freed(tmp_path: Path, engine: dict[str, str]) -> None:
    recorded = recorded_by(
        engine,
        tmp_path,
        """
        def main():
            global kept
            for _ in range(5):
                gone = [bytes(400) for _ in range(50_000)]  # @gone
            del gone
            kept = [bytes(400) for _ in range(50_000)]  # @kept
        """,
        sample_bytes=8192,
    )
    assert recorded.held("gone", "python", "end") == 0
    assert recorded.held("kept", "python", "end") == pytest.approx(50_000 * 433, rel=0.1)


def test_a_fork_leaves_parent_and_child_as_they_are(tmp_path: Path, engine: dict[str, str]) -> None:
    recorded = recorded_by(
        engine,
        tmp_path,
        """
        import os, warnings
        warnings.simplefilter("error")  # CPython warns who forks with a second thread
        def main():
            global kept
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    lost = [bytes(1000) for _ in range(10_000)]  # @child
                    os._exit(len(lost) != 10_000)
                assert os.waitpid(child, 0)[1] == 0
            kept = [bytes(1000) for _ in range(10_000)]  # @kept
        """,
    )
    assert recorded.held("child", "python", "end") == 0
    assert recorded.held("kept", "python", "end") == pytest.approx(10_000 * 1033, rel=0.01)


def test_the_report_says_what_was_not_recorded(tmp_path: Path, engine: dict[str, str]) -> None:
    (tmp_path / "program.py").write_text("kept = [bytes(1000) for _ in range(5_000)]\n")

    def hiwater(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *WITHOUT_SITE, "-m", "hiwater", *words],
            cwd=tmp_path, capture_output=True, text=True, check=False, env=child_environment(engine), timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    missed = "objects of Python alone were recorded"
    said = hiwater("run", "-o", "run.hiw", "program.py").stderr
    assert f"warning: {missed}" in said
    assert "resident memory not measured" in said
    report = hiwater("report", "run.hiw", "--format", "text").stdout
    assert missed in report
    assert "not measured" in report
    document = json.loads(hiwater("report", "run.hiw", "--format", "json").stdout)
    assert document["lines"]["rows"][0]["bytes"] == pytest.approx(5_000 * 1033, rel=0.02)
