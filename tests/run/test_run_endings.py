"""How a recorded program ends, with the real engine: what is said and what the capture says of it."""

import json
import subprocess
from pathlib import Path

import pytest

from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return run_hiwater("run", "-o", "a.hiw", "-c", code, folder=folder)


def ended(folder: Path) -> tuple[str, int | None]:
    done = run_hiwater("report", "a.hiw", "--format", "json", folder=folder, check=True)
    process = json.loads(done.stdout)["process"]
    return process["ended"], process["exit_code"]


@pytest.mark.parametrize("ending", ["raise SystemExit(7)", "import os; os._exit(7)"])
def test_the_three_lines_come_however_the_program_leaves(tmp_path: Path, ending: str) -> None:
    done = run(tmp_path, f"held = bytearray(5_000_000)\n{ending}")

    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["peak", "most", "capture"]
    assert "4.77 MiB at <string>:1" in lines[1]
    assert ended(tmp_path) == ("exit", 7)


def test_a_forked_child_that_leaves_by_exit_says_nothing_and_leaves_the_capture_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nheld = bytearray(5_000_000)")

    assert (done.returncode, len(done.stderr.splitlines())) == (0, 3)
    assert ended(tmp_path) == ("exit", 0)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_a_killed_program_leaves_a_capture_that_says_so(tmp_path: Path, signal: str) -> None:
    code = f"import os, signal\nheld = bytearray(5_000_000)\nos.kill(os.getpid(), signal.{signal})"
    done = run(tmp_path, code)

    assert done.returncode < 0
    assert ended(tmp_path) == ("killed", None)


def test_exec_ends_the_recording(tmp_path: Path) -> None:
    done = run(tmp_path, "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(5)'])")

    assert (done.returncode, done.stdout) == (0, "5\n")
    assert ended(tmp_path)[0] == "exit"
