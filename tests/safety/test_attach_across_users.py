"""Root attaches to a process of another user, who tries to have root write elsewhere, or to write to root's
terminal."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import run_hiwater
from hiwater._os import trust
from hiwater._os.process_identity import owner_of
from hiwater.cli import injected
from hiwater.errors import AttachRefused
from other_user import UID, as_other_user, needs_other_users, run_as_other_user, shared_folder
from recording import child_environment, needs_engine
from waiting import wait_until

pytestmark = needs_engine

ATTACK = """
import os, sys
folder, script = os.path.dirname(sys.argv[1]), sys.argv[1]
attempts = {
    "rename": lambda: os.rename(script, script + ".old"),
    "link": lambda: os.symlink("/etc/passwd", folder + "/answer.json.part"),
    "unlink": lambda: os.unlink(folder + "/answer.json"),
    "script": lambda: open(script, "a"),
    "folder": lambda: os.rename(folder, folder + ".old"),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name)
    except OSError:
        pass
"""


@pytest.fixture
def theirs():
    """A process of another user."""
    process = subprocess.Popen(as_other_user("sleep", "60"))
    wait_until(lambda: owner_of(process.pid) == (UID, UID))
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which anybody may write to. Not before pytest has made its own."""
    child_environment()  # whose folder of libraries outlives this one
    with shared_folder() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@needs_other_users
def test_what_is_made_for_a_request_stays_out_of_the_other_users_hands(
    theirs: int, requests: Path, tmp_path: Path
) -> None:
    made = []

    def bring(_: int, script: str) -> None:
        for path in (Path(script).parent, Path(script), Path(script).with_name("answer.json")):
            found = path.stat()
            made.append((path.name.partition("-")[0], found.st_uid, stat.S_IMODE(found.st_mode)))
        attack = run_as_other_user(sys.executable, "-c", ATTACK, script, folder=tmp_path)
        assert (attack.returncode, attack.stdout) == (0, "")
        ran = run_as_other_user(sys.executable, script, folder=tmp_path)
        assert (ran.returncode, ran.stderr) == (0, "")

    said = injected.ask(theirs, {"do": "detach"}, 60, bring)
    assert "no recording that `hiwater attach` began" in said["problem"]
    assert made == [("hiwater", 0, 0o711), ("script.py", 0, 0o644), ("answer.json", UID, 0o600)]
    assert [*requests.glob("hiwater-attach-*")] == []


@needs_other_users
@pytest.mark.parametrize("how", ["theirs", "below theirs", "writable", "a link to theirs"])
def test_the_folder_of_a_request_lies_where_nobody_else_can_move_it(
    how: str, theirs: int, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `sudo -E`, TMPDIR is the caller's."""
    folder = requests / "folder"
    folder.mkdir()
    if how == "writable":
        folder.chmod(0o777)
    else:
        os.chown(folder, UID, UID)
    if how == "below theirs":
        folder = folder / "ours"
        folder.mkdir()
    elif how == "a link to theirs":
        (requests / "link").symlink_to(folder)
        folder = requests / "link"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    brought = []

    def bring(_: int, script: str) -> None:
        brought.append(Path(script))
        raise AttachRefused("enough", "")

    with pytest.raises(AttachRefused, match="enough"):
        injected.ask(theirs, {"do": "detach"}, 60, bring)
    assert trust.is_safe_way(str(requests)) and not trust.is_safe_way(str(folder))
    assert requests not in brought[0].parents


@needs_other_users
def test_a_process_that_never_answers_leaves_a_folder_that_the_next_request_removes(
    theirs: int, requests: Path
) -> None:
    with pytest.raises(AttachRefused, match="has not run"):
        injected.ask(theirs, {"do": "detach"}, 0.1, lambda *_: None)
    (left,) = requests.iterdir()
    assert "answer" not in (left / "script.py").read_text()  # whoever runs it now does nothing
    process = subprocess.Popen(["sleep", "60"])
    dead = requests / "hiwater-attach-1-0-gone"
    dead.mkdir()
    foreign = requests / "hiwater-attach-2-0-foreign"
    foreign.mkdir()
    os.chown(foreign, UID, UID)
    try:
        with pytest.raises(AttachRefused):
            injected.ask(process.pid, {"do": "detach"}, 0.1, lambda *_: None)
    finally:
        process.kill()
        process.wait()
    assert not dead.exists()
    assert left.exists() and foreign.exists()  # the first one's process runs; the other is another user's


CLAIMS = """
import mmap, os, sys, time
path = f"/dev/shm/claims-{os.getpid()}"
descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.write(descriptor, b"HIWCTL1\\n".ljust(4096, b"\\0"))
content = mmap.mmap(descriptor, 4096)
print(os.getpid(), flush=True)
until = time.monotonic() + 30
while time.monotonic() < until and content[8:12] == content[12:16]:
    time.sleep(0.01)
content[2048:2048 + 1900] = os.fsencode(sys.argv[1]).ljust(1900, b"\\0")
content[12:16] = content[8:12]
os.unlink(path)
time.sleep(1)
"""
ANSWERS = [
    "[]", "7", "not JSON", "{}", '{"path": 7}', "[" * 1800, '{"problem": 7}', '{"path": "x", "peak_bytes": "many"}',
    json.dumps({"problem": "\x1b]0;owned\x07 \u202etxt.exe\nhiwater: all is well", "remedy": "\x9b31m"},
        ensure_ascii=False),
    json.dumps({"path": "\x1b[2J\u202e", "peak_bytes": 1}, ensure_ascii=False),
]  # fmt: skip


@pytest.mark.parametrize("verb", ["attach", "detach"])
@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_whatever_a_process_answers_is_one_clear_line(answer: str, verb: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIMS, answer],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment({"LC_ALL": "C.UTF-8"}),
    )
    assert process.stdout is not None
    pid = process.stdout.readline().strip()
    words = ["-o", tmp_path / "x.hiw"] if verb == "attach" else []
    done = run_hiwater(verb, pid, *words, folder=tmp_path, environment={"LC_ALL": "C.UTF-8"})
    process.kill()
    process.communicate()
    assert done.returncode in (0, 126)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("hiwater: ")
    assert all(character.isprintable() for character in done.stderr.rstrip("\n")), ascii(done.stderr)
