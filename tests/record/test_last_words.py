"""The last words of a program that comes near to what limits its memory: in the file even where it is killed, and
never at its cost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import compiled
import hiwater
from children import hiwater_command, run_hiwater
from hiwater._os.destination import TERMINATION_LOG
from recording import child_environment, needs_engine
from waiting import wait_until

pytestmark = needs_engine

# Takes memory until it is refused, then ends as its argument says.
GROWING = """\
import os, signal, sys, time

def load(kept):
    while True:
        kept.append(bytearray(4_000_000))  # the line with most
        time.sleep(0.005)

kept = []
try:
    load(kept)
except MemoryError:
    time.sleep(0.05)  # the recorder looks at the limits every 10 ms
    if sys.argv[1:] == ["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)
"""
LIMIT = ("-q", "--limit", "300MiB")
HEADLINE = (
    r"hiwater: peak (\d+\.\d) MiB of {limit} MiB \(([a-z ]+)\)(?:, stalled \d+ % of the time)?; most: (\d+\.\d) "
    r"MiB at etl\.py:5 in load"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "etl.py").write_text(GROWING)
    return tmp_path


def run(
    folder: Path, *options: object, how: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    words = [*LIMIT, *options, "-o", folder / "a.hiw", folder / "etl.py", *filter(None, [how])]
    return run_hiwater("run", *words, folder=folder, environment=environment)


def check(file: Path, kind: str, *, limit: str = r"300\.0", most: float = 200) -> None:
    """The words in `file` name the line with most, and the capture."""
    text = file.read_text()
    found = re.match(HEADLINE.format(limit=limit), text)
    assert found is not None, text
    assert found[2] == kind
    assert float(found[1]) >= 270
    assert float(found[3]) >= most
    process = re.search(
        r"\nprocess (\d+) with \d+ MiB resident, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: hiwater report (\S+)\s*\n$", text
    )
    assert process is not None, text
    assert hiwater.open(process[2]).process.pid == int(process[1])
    assert len(text) <= 4096


def test_they_are_in_the_file_after_a_kill(folder: Path) -> None:
    done = run(folder, "--last-words", "words.txt", how="kill")

    assert done.returncode == -signal.SIGKILL
    check(folder / "words.txt", "address space")


def test_the_program_s_heap_is_asked_for_nothing(folder: Path) -> None:
    counts = "import ctypes; print(ctypes.CDLL(None).requests_of_other_threads())\n"
    (folder / "etl.py").write_text(GROWING + "kept.clear()\n" + counts)

    done = run(folder, "--last-words", "words.txt", environment={"LD_PRELOAD": str(compiled.library("heap_callers"))})

    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    check(folder / "words.txt", "address space")


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_the_environment_names_the_file(folder: Path, options: tuple[str, ...]) -> None:
    done = run(folder, *options, environment={"HIWATER_LAST_WORDS": str(folder / "%p.txt")})

    assert (done.returncode, done.stderr) == (0, "")
    check(folder / f"{hiwater.open(folder / 'a.hiw').process.pid}.txt", "address space")


def test_a_recording_in_python_takes_the_file(folder: Path) -> None:
    code = (
        "import resource, hiwater\n"
        "with hiwater.record('a.hiw', last_words='words.txt'):\n"
        "    with open('/proc/self/statm') as file: used = int(file.read().split()[0]) * 4096\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))\n"
        "    import runpy; runpy.run_path('etl.py')\n"
    )
    words = hiwater_command()[:1]
    subprocess.run([*words, "-c", code], cwd=folder, env=child_environment(), check=True, timeout=300)
    text = (folder / "words.txt").read_text()
    assert re.match(
        r"hiwater: peak \d+\.\d MiB of \d+\.\d MiB \(address space\).*; most: \d+\.\d MiB at etl\.py:5 in load\n", text
    ), text


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup of 300 MiB, version 1 or 2."""
    tops = {1: Path("/sys/fs/cgroup/memory"), 2: Path("/sys/fs/cgroup")}
    version = 1 if tops[1].is_dir() else 2
    limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
    membership = next(
        (
            line.rsplit(":", 1)[1]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if ":memory:" in line or line.startswith("0::")
        ),
        "/",
    )
    path = Path(f"{tops[version]}/{membership}") / f"hiwater-{os.getpid()}"
    try:
        path.mkdir()
        (path / limit).write_text("300M")
    except OSError as error:
        if path.is_dir():
            path.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield path
    path.rmdir()


def test_a_cgroup_that_kills(folder: Path, group: Path) -> None:
    options = ["-q", "--last-words", "words.txt", "-o", "a.hiw", "etl.py"]

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        hiwater_command("run", *options), cwd=folder, env=child_environment(), preexec_fn=enter, check=False,
        timeout=300
    )  # fmt: skip

    assert done.returncode == -signal.SIGKILL
    check(folder / "words.txt", "cgroup")


def test_an_executed_child_leaves_them_in_the_file_of_the_run(folder: Path) -> None:
    (folder / "parent.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, 'etl.py', 'kill']).returncode == -9)"
    )
    words = ("--last-words", "100%% words.txt", "-o", "a.hiw", "parent.py")
    done = run_hiwater("run", *LIMIT, *words, folder=folder)

    assert done.returncode == 1, done.stderr
    check(folder / "100% words.txt", "address space")


def test_an_executed_child_has_the_ceiling_that_was_asked_for_unless_the_program_sets_another(folder: Path) -> None:
    (folder / "child.py").write_text("import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0])")
    (folder / "parent.py").write_text(
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, 'child.py'])\n"
        "subprocess.run([sys.executable, 'child.py'], preexec_fn=lambda: "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, -1)))\n"
    )
    done = run_hiwater("run", *LIMIT, "-o", "a.hiw", "parent.py", folder=folder)

    inherited, of_program = map(int, done.stdout.split())
    assert inherited > 300 << 20 and of_program == 1 << 30, done.stderr
    run = hiwater.open_run(folder / "a.hiw")
    # Where _posixsubprocess is built into the interpreter, the child of its fork has a capture until it executes the
    # program.
    programs = [one for one in run.captures if one.facts.get("started_by") != "fork"]
    assert sorted(one.facts.get("limit_bytes", "") for one in programs) == ["", str(300 << 20), str(300 << 20)]
    assert {one.pressure[-1].address_space_limit for one in run.captures if one.pressure} <= {300 << 20, 1 << 30}


TREE = """\
import multiprocessing, os, subprocess, sys, time
from etl import load
def rest(text):
    kept = bytearray(20_000_000)
    open(f"{text}.{os.getpid()}.ready", "w").close()
    time.sleep(1000)
if sys.argv[1:]:
    rest(sys.argv[1])
elif __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=rest, args=("forked",)).start()
    multiprocessing.get_context("spawn").Process(target=rest, args=("spawned",)).start()
    subprocess.Popen([sys.executable, __file__, "executed"])
    while len([name for name in os.listdir() if name.endswith(".ready")]) < 3:
        time.sleep(0.01)
    culprit = multiprocessing.get_context("fork").Process(target=load, args=([],))
    culprit.start()
    rest("main")
"""


def test_a_cgroup_that_kills_a_tree(folder: Path, group: Path) -> None:
    (folder / "etl.py").write_text(GROWING.partition("\nkept = []")[0])
    (folder / "tree.py").write_text(TREE)
    whole_group = group / "memory.oom.group"
    if whole_group.exists():
        whole_group.write_text("1")

    enters = f'echo $$ >{group}/cgroup.procs; exec "$@"'
    words = hiwater_command("run", "-q", "--last-words", "words.txt", "-o", "a.hiw", "tree.py")
    process = subprocess.Popen(["sh", "-c", enters, "sh", *words], cwd=folder, env=child_environment())
    try:
        wait_until(lambda: _kills(group) > 0)
    finally:
        # A container's runtime does this if the kernel does not.
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        process.wait(100)
        wait_until(lambda: not (group / "cgroup.procs").read_text())

    check(folder / "words.txt", "cgroup", most=100)
    found = hiwater.open_run(folder / "a.hiw")
    assert (len(found.captures), found.unrecorded, found.unreadable) == (5, (), [])
    assert {capture.process.ended for capture in found.captures} == {"killed"}
    worst = max(found.captures, key=lambda capture: capture.peak.allocated_bytes)
    named = re.search(r"\nprocess (\d+) with", (folder / "words.txt").read_text())
    assert named is not None and int(named[1]) == worst.process.pid
    told = run_hiwater("report", "a.hiw", folder=folder, check=True).stdout
    assert f"highest: {worst.process.pid}" in told and "etl.py:5" in told


def _kills(group: Path) -> int:
    """How many processes of the group the kernel has killed."""
    rows = (group / ("memory.oom_control" if (group / "memory.oom_control").exists() else "memory.events")).read_text()
    return int(dict(row.split() for row in rows.splitlines())["oom_kill"])


@pytest.fixture
def termination_log() -> Iterator[Path]:
    path = Path(TERMINATION_LOG)
    if path.exists():
        pytest.skip(f"{path} is in use here")
    try:
        path.touch()
    except OSError as error:
        pytest.skip(f"{path} cannot be made here: {error}")
    yield path
    path.unlink()


def test_kubernetes_termination_log_is_used_in_a_pod_alone(folder: Path, termination_log: Path) -> None:
    run(folder)
    assert termination_log.read_text() == ""

    run(folder, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HIWATER_LAST_WORDS": str(folder / "words.txt")})
    assert termination_log.read_text() == ""
    check(folder / "words.txt", "address space")

    run(folder, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    check(termination_log, "address space")


def test_former_words_leave_no_rest(folder: Path) -> None:
    file = folder / "words.txt"
    file.write_text("hiwater: " + "x" * 2000 + "\n")

    run(folder, "--last-words", file)

    check(file, "address space")
    assert "x" * 20 not in file.read_text()


def test_the_words_of_a_larger_process_that_lives_stay(folder: Path) -> None:
    file = folder / "words.txt"
    theirs = (
        "hiwater: peak 9.9 GiB of 10.0 GiB (cgroup)\n"
        f"process {os.getpid()} with 10137 MiB resident, then: hiwater report x.hiw\n"
    )
    file.write_text(theirs)
    run(folder, "--last-words", file)
    assert file.read_text() == theirs

    ended = subprocess.Popen(["true"])
    ended.wait()
    file.write_text(theirs.replace(str(os.getpid()), str(ended.pid)))
    run(folder, "--last-words", file)
    check(file, "address space")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: file.write_text("mine\n"), "it has other contents"),
        (lambda file: file.mkdir(), "Is a directory"),
        (lambda file: file.symlink_to("/dev/null"), "Too many levels of symbolic links"),
        (os.mkfifo, "it is not a file"),
    ],
    ids=["contents", "folder", "link", "pipe"],
)
def test_what_is_no_file_for_them_stays_as_it_is(folder: Path, make: object, reason: str) -> None:
    file = folder / "words.txt"
    assert callable(make)
    make(file)
    before = file.lstat()

    done = run(folder, "--last-words", file)

    assert done.returncode == 0
    assert done.stderr == f"hiwater: warning: the last words were not written to {file}: {reason}\n"
    after = file.lstat()
    assert (before.st_mode, before.st_size, before.st_mtime_ns) == (after.st_mode, after.st_size, after.st_mtime_ns)
    assert hiwater.open(folder / "a.hiw").shortcomings == [f"the last words were not written to {file}: {reason}"]


def test_a_full_disk_and_a_removed_folder_are_told_and_disturb_nobody(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        try:
            with (disk / "filling").open("wb", buffering=0) as filling:
                assert filling.write(bytes(100_000)) == 65_536
            done = run(folder, "--last-words", disk / "words.txt")
        finally:
            subprocess.run(["umount", disk], check=True)
        assert done.returncode == 0
        assert done.stderr.endswith(f"not written to {disk}/words.txt: No space left on device\n")

    disk.rmdir()
    done = run(folder, "--last-words", disk / "words.txt")
    assert done.returncode == 0
    assert done.stderr.endswith(f"not written to {disk}/words.txt: No such file or directory\n")
