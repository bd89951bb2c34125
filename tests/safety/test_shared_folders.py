"""Others put FIFOs and folders where a recording writes: it neither waits for them nor writes into them, and says
so."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hiwater
from children import hiwater_command, run_hiwater, run_python
from hiwater._os import destination, trust
from hiwater._os.replacing import replacing
from other_user import UID, needs_other_users, run_as_other_user, shared_folder
from recording import child_environment, needs_engine

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


PLACED = {
    "a FIFO": os.mkfifo,
    "a link": lambda path: os.symlink("elsewhere", path),
    "a dangling link to a device": lambda path: os.symlink("/dev/full", path),
    "a folder": os.mkdir,
}
WRITERS = {
    "run": ("run", "-c", "pass", "-o"),
    "sample": ("sample", "-o"),
    "snapshot": ("snapshot", "a.hiw", "-o"),
    "merge": ("merge", "a.hiw", "-o"),
}


@pytest.mark.parametrize("what", PLACED)
@pytest.mark.parametrize("verb", WRITERS)
def test_what_is_in_the_place_of_a_capture_is_neither_followed_nor_waited_for(
    verb: str, what: str, tmp_path: Path
) -> None:
    run_hiwater("run", "-q", "-o", "a.hiw", "-c", "pass", folder=tmp_path, check=True)
    PLACED[what](tmp_path / "out.hiw")
    before = (tmp_path / "out.hiw").lstat().st_ino
    command, option = WRITERS[verb][:-1], WRITERS[verb][-1]
    words = (command[0], option, "out.hiw", *command[1:]) + (("--", "true") if verb == "sample" else ())
    done = run_hiwater(*words, folder=tmp_path)
    assert done.returncode == 125 and done.stderr.count("\n") == 1 and "with -o" in done.stderr
    assert (tmp_path / "out.hiw").lstat().st_ino == before and not (tmp_path / "elsewhere").exists()


SCOPES = "from hiwater.sampling import scope_file; scope_file.append('x', 1, 2); print(scope_file.wanted())"


@pytest.mark.parametrize("what", [*PLACED, "isolated"])
def test_a_file_for_scopes_is_neither_followed_nor_waited_for(what: str, tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "scopes", tmp_path / "elsewhere"
    elsewhere.write_text("precious\n")
    PLACED.get(what, lambda path: path.write_text("precious\n"))(place)
    words = [sys.executable, *(["-E"] if what == "isolated" else []), "-c", SCOPES]
    environment = child_environment({"HIWATER_SCOPES": str(place)})
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert done.stdout == f"{what != 'isolated'}\n"
    assert elsewhere.read_text() == "precious\n"
    assert what != "isolated" or place.read_text() == "precious\n"


def test_what_is_no_file_is_not_even_opened(tmp_path: Path) -> None:
    """Some devices do something when they are opened, and whoever writes to a FIFO goes on."""
    os.mkfifo(tmp_path / "fifo")
    writes = [sys.executable, "-c", "print(flush=True); open('fifo', 'wb'); print('open')"]
    writer = subprocess.Popen(writes, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    writer.stdout.readline()
    for follows in (False, True):
        with pytest.raises(OSError, match="not a regular file"):
            trust.open_regular(tmp_path / "fifo", follows=follows)
    time.sleep(0.1)
    assert writer.poll() is None
    writer.kill()
    assert writer.communicate()[0] == ""


def test_what_replaces_an_output_meanwhile_keeps_its_mode(tmp_path: Path) -> None:
    """A link that somebody put in the place of the new file, in a folder that is not sticky."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    with replacing(tmp_path / "page.html"):
        (made,) = tmp_path.glob(".hiwater-*")
        made.unlink()
        made.symlink_to(secret)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_nothing_is_removed_from_a_folder_of_somebody_elses(tmp_path: Path) -> None:
    """An earlier run's captures of children are removed, wherever their folder is no link."""
    theirs, ours = tmp_path / "theirs", tmp_path / "run.hiw"
    theirs.mkdir()
    (theirs / "index.jsonl").write_text("precious")
    (theirs / f"{2**22 + 1}-1.hiw").write_text("precious")
    (tmp_path / "run.hiw.d").symlink_to(theirs)
    destination.forget_children(str(ours))
    assert len([*theirs.iterdir()]) == 2
    (tmp_path / "run.hiw.d").unlink()
    theirs.rename(tmp_path / "run.hiw.d")
    destination.forget_children(str(ours))
    assert not (tmp_path / "run.hiw.d").exists()


FORKS = """
import ctypes, os
held = bytearray(10**6)
{first}
if os.fork() == 0:
    more = bytearray(2 * 10**6)
    os._exit(0)
os.wait()
"""


@needs_other_users
def test_a_file_system_that_gives_files_to_somebody_else_keeps_no_child_from_being_recorded() -> None:
    """As NFS with root_squash does with root's. The kernel makes files as the user that setfsuid() names."""
    with shared_folder() as folder:
        source = FORKS.format(first=f"ctypes.CDLL(None).setfsuid({UID})")
        done = run_hiwater("run", "-q", "-o", "run.hiw", "-c", source, folder=folder)
        assert (done.returncode, done.stderr) == (0, "")
        (child,) = (folder / "run.hiw.d").glob("*.hiw")
        (row,) = map(json.loads, (folder / "run.hiw.d" / "index.jsonl").read_text().splitlines())
        assert {path.lstat().st_uid for path in (child, child.parent, child.with_name("index.jsonl"))} == {UID}
        assert row["capture"] == child.name
        assert len(hiwater.open_run(folder / "run.hiw").captures) == 2
        asks = (
            f"import ctypes, sys; from hiwater._os import trust; ctypes.CDLL(None).setfsuid({UID}); "
            "print(trust.is_own_folder(sys.argv[1]))"
        )
        done = run_python("-c", asks, child.parent, check=True)
        assert done.stdout == "True\n"
        assert not trust.is_own_folder(str(child.parent))  # this process makes root's
        assert sorted(path.name for path in child.parent.iterdir()) == [child.name, "index.jsonl"]


@needs_other_users
@pytest.mark.parametrize("how", ["theirs", "writable", "link"])
def test_a_child_by_fork_leaves_nothing_in_a_folder_that_somebody_made_meanwhile(how: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    make = {
        "theirs": f"os.mkdir('run.hiw.d', 0o700); os.chown('run.hiw.d', {UID}, {UID})",
        "writable": "os.mkdir('run.hiw.d'); os.chmod('run.hiw.d', 0o777)",
        "link": "os.symlink('elsewhere', 'run.hiw.d')",
    }
    done = run_hiwater("run", "-o", "run.hiw", "-c", FORKS.format(first=make[how]), folder=tmp_path)
    assert done.returncode == 0
    assert "hiwater: warning: 1 child process could not be recorded (" in done.stderr
    assert [*(tmp_path / "run.hiw.d").iterdir()] == []
