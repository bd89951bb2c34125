"""What hiwater does on systems that lack what Linux has, and without its engine: readers read, lines, scopes and
`sample` measure resident memory, and `run` runs the program. `elsewhere.py` takes away what those systems lack."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import elsewhere
import example_captures
import warm_reader
from children import run_hiwater
from recording import child_environment

SYSTEMS = ["macos", "windows"]
on_each = pytest.mark.parametrize("system", SYSTEMS)
MIB = 1 << 20
PROGRAM = "import sys, time\nheld = bytearray(40 << 20)\ntime.sleep(0.2)\nprint('ran')\nsys.exit(4)\n"


def there(system: str, folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command on the other system."""
    return warm_reader.run(
        "elsewhere", [system, *map(str, words)], folder, child_environment(), elsewhere.LOADED_BEFORE
    )


@functools.cache
def here(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_hiwater(*words, folder=folder)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two captures, and both merged into one."""
    folder = tmp_path_factory.mktemp("captures")
    example_captures.written_pair(folder)
    return folder


@on_each
@pytest.mark.parametrize(
    "words",
    [
        ["report", "b.hiw", "--format", "json"],
        ["report", "b.hiw", "--format", "html", "-o", "-"],
        ["report", "b.hiw", "--full"],
        ["diff", "a.hiw", "b.hiw", "--format", "json"],
        ["check", "b.hiw", "--peak", "1GiB"],
        ["check", "b.hiw", "--peak", "1B"],
        ["report", "none.hiw"],
        ["live", "--once", "b.hiw"],
    ],
    ids=" ".join,
)
def test_readers_say_the_same(captures: Path, system: str, words: list[str]) -> None:
    elsewhere_, known = there(system, captures, *words), here(captures, *words)
    assert (elsewhere_.stdout, elsewhere_.stderr, elsewhere_.returncode) == (
        known.stdout,
        known.stderr,
        known.returncode,
    )
    assert known.stdout or known.returncode


@on_each
def test_captures_are_merged_and_replaced(captures: Path, system: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = there(system, captures, "merge", "-o", tmp_path / "both.hiw", "a.hiw", "b.hiw")
        assert done.returncode == 0, done.stderr
    report = there(system, tmp_path, "report", "both.hiw", "--format", "json")
    assert report.stdout == here(tmp_path, "report", "both.hiw", "--format", "json").stdout


@on_each
@pytest.mark.parametrize("options", [[], ["--limit", "1GiB", "-o", "mine.hiw"], ["--standby"]], ids=" ".join)
def test_a_program_runs_and_a_line_says_that_nothing_is_recorded(
    system: str, options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = there(system, tmp_path, "run", *options, "program.py")
    assert (done.stdout, done.returncode) == ("ran\n", 4)
    assert re.fullmatch(r"hiwater: warning: the program .*built without its engine.*\n", done.stderr)
    assert ("without its limit" in done.stderr) == ("--limit" in options)
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@on_each
def test_what_checks_programs_does_not_pass_without_a_recording(system: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hiwater.check.programs]\none = "-c pass"\n')
    done = there(system, tmp_path, "check", "--peak", "1GiB")
    assert done.returncode == 125
    assert "built without its engine" in done.stderr


@on_each
def test_lines_have_resident_memory(system: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("sys.exit(4)\n", ""))
    done = there(system, tmp_path, "lines", "--all", "--format", "json", "program.py")
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout[done.stdout.index("{") :])["functions"][0]["lines"]
    (grown,) = [line["resident_bytes"] for line in lines if line["line"] == 2]
    assert 39 * MIB < grown < 44 * MIB


SCOPE = """\
import time
import hiwater
with hiwater.track("block") as run:
    held = bytearray(40 << 20)
    time.sleep(0.1)
    del held
usage = run.usage
assert usage.resident.peak_above_start_bytes > 30 << 20, usage.resident
assert not usage.resident.exact
assert usage.cpu_user_seconds >= 0
print(usage)
"""


@on_each
def test_scopes_have_resident_memory(system: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCOPE)
    done = there(system, tmp_path, "program.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("page faults" in done.stdout) == (system == "macos")  # nobody counts them on Windows


@on_each
def test_a_command_is_sampled(system: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for _ in range(2):  # the second takes the place of the first
        done = there(system, tmp_path, "sample", "-o", "s.hiw", "--", sys.executable, "program.py")
        assert (done.stdout, done.returncode) == ("ran\n", 4)
    assert "resident (at least)" in done.stderr
    peak = json.loads(there(system, tmp_path, "report", "s.hiw", "--format", "json").stdout)["resident"]["peak_bytes"]
    assert 40 * MIB < peak < 80 * MIB
    none = there(system, tmp_path, "sample", "--", "there-is-no-such-command")
    assert (none.returncode, none.stderr.count("\n")) == (127, 1)


@on_each
def test_a_process_is_sampled_with_its_children(system: str, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'held = bytearray(30 << 20); print(1, flush=True); import time; "
        "time.sleep(60)'])\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        try:
            done = there(system, tmp_path, "sample", "--timeout", "0.3", "-o", "s.hiw", str(program.pid))
        finally:
            os.killpg(program.pid, signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert "1 child process, the highest" in done.stderr
    assert there(system, tmp_path, "sample", str(program.pid)).returncode == 127


@on_each
def test_the_doctor_says_what_is_missing(system: str, tmp_path: Path) -> None:
    done = there(system, tmp_path, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("no engine")
