"""Others put FIFOs and folders where a recording writes: it neither waits for them nor writes into them, and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hiwater
from children import hiwater_command, run_hiwater
from other_user import needs_other_users, run_as_other_user, shared_folder
from recording import needs_engine

pytestmark = needs_engine

LATE = """
import os, subprocess, sys
child = [sys.executable, "-c", "x = 1"]
subprocess.run(child)
index = "run.hiw.d/index.jsonl"
os.unlink(index)
{replace}
subprocess.run(child)
print("done")
"""
REPLACEMENTS = {
    "a FIFO": "os.mkfifo(index)",
    "a link": "os.symlink('elsewhere', index)",
    "a folder": "os.mkdir(index)",
    "a device": "os.symlink('/dev/zero', index)",
}


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_what_is_put_in_the_place_of_the_index_stops_nobody(replace: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LATE.format(replace=REPLACEMENTS[replace]))
    done = run_hiwater("run", "-o", "run.hiw", "program.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert not (tmp_path / "run.hiw.d" / "elsewhere").exists()
    shown = run_hiwater("report", "run.hiw", folder=tmp_path)
    assert shown.returncode == 0
    assert len(hiwater.open_run(tmp_path / "run.hiw").captures) >= 2


@needs_other_users
def test_a_folder_of_somebody_elses_is_refused_before_the_program_begins() -> None:
    with shared_folder() as shared:
        folder = shared / "run.hiw.d"
        folder.mkdir()
        os.mkfifo(folder / "index.jsonl")
        done = run_as_other_user(*hiwater_command("run", "-o", "run.hiw", "-c", "print(7)"), folder=shared)
    assert (done.returncode, done.stdout) == (125, "")
    assert "not a folder of yours alone; choose another file with -o" in done.stderr
