"""Standard output that is closed, full, or read by nobody any more: every verb says so in one line, and leaves no
traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from children import hiwater_command, run_command, run_hiwater
from hiwater.cli.verbs import VERBS
from recording import child_environment, needs_engine

pytestmark = needs_engine

COMMANDS = {
    **dict.fromkeys(VERBS, ("--help",)),
    "report": ("a.hiw", "--format", "json"),
    "diff": ("a.hiw", "a.hiw"),
    "check": ("a.hiw", "--peak", "1GiB"),
    "holders": ("a.hiw",),
    "live": ("a.hiw",),
    "doctor": (),
}
ENDINGS = {">&-": (125, "closed"), ">/dev/full": (125, "No space left"), "": (141, "")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("captures")
    run_hiwater("run", "--holders", "-o", "a.hiw", "-c", "import hiwater; hiwater.mark('a')", folder=made, check=True)
    return made


@pytest.mark.grid
@pytest.mark.parametrize("how", ENDINGS, ids=["closed", "full", "nobody reads"])
@pytest.mark.parametrize("verb", COMMANDS)
def test_one_line_and_no_traceback(verb: str, how: str, folder: Path) -> None:
    code, said = ENDINGS[how]
    reader, pipe = os.pipe()
    os.close(reader)
    done = subprocess.run(
        ["bash", "-c", f"exec {shlex.join(hiwater_command(verb, *COMMANDS[verb]))} {how}"], cwd=folder, stdout=pipe,
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    os.close(pipe)
    assert done.returncode == code
    assert done.stderr.count("\n") == (1 if said else 0) and said in done.stderr


def test_a_program_has_its_own_standard_output(folder: Path) -> None:
    """What fails there is the program's affair, as without hiwater; the report after it is hiwater's."""
    line = shlex.join(hiwater_command("run", "--format", "text", "-o", "b.hiw", "-c", "pass"))
    done = run_command(["bash", "-c", f"{line} >/dev/full"], folder=folder, env=child_environment())
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "No space left" in done.stderr.splitlines()[-1]
