"""Programs that are recorded from the middle of their life on: standby, attach, detach, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import compiled
import hiwater
from children import hiwater_command, run_hiwater
from hiwater.cli import attach, gdb, injected
from recording import child_environment, needs_engine
from waiting import wait_until

pytestmark = needs_engine

GROWS = """
import os, time
os.environ.get("FORKS") and os.fork()
print(f"{os.getpid()}\\n", end="", flush=True)  # one write, also where PYTHONUNBUFFERED is set
old, kept = bytearray(7_000_000), []
while True:
    kept.append(bytearray(1000))
    time.sleep(0.001)
"""
BUSY = """
import os
print(os.getpid(), flush=True)
kept = []
while True:
    kept.append(bytearray(1000))
    kept[:] = kept[-1000:]
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "/v/bin/hiwater", "run", "--standby", "srv/serve.py", "run"], "serve"),
        (["python", "-m", "hiwater", "run", "-o", "a.hiw", "--standby", "-m", "shop.serve"], "shop.serve"),
        (["python", "-X", "dev", "serve.py"], "serve"),
        (["python", "/v/bin/gunicorn", "shop:app"], "gunicorn"),
        (["python", "-c", "import shop"], "command"),
        (["python"], "process"),
        ([], "process"),
    ],
)
def test_a_capture_that_nobody_named_is_called_by_the_program(command: list[str], name: str) -> None:
    assert attach.program_name(command) == name


def does_gdb_call() -> bool:
    try:
        gdb.try_out()
    except hiwater.errors.AttachRefused:
        return False
    return True


HAS_GDB = shutil.which("gdb") is not None and os.geteuid() == 0
needs_gdb = pytest.mark.skipif(not HAS_GDB, reason="needs gdb, and root to trace a process")
needs_calls_by_gdb = pytest.mark.skipif(
    not HAS_GDB or not does_gdb_call(), reason="needs a gdb that calls functions here, and root to trace a process"
)
needs_remote_exec = pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python has no sys.remote_exec()")
by_each_method = pytest.mark.parametrize(
    "method", [pytest.param("auto", marks=needs_remote_exec), pytest.param("gdb", marks=needs_calls_by_gdb)]
)
SELECTS = "import os, select\nprint(os.getpid(), flush=True)\nselect.select([], [], [])"
PTRACE_CALLS = (101, 310, 311)  # ptrace, process_vm_readv and process_vm_writev on x86-64


@contextmanager
def running(
    folder: Path, *words: str, source: str = GROWS, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *words] if words else hiwater_command("run", "--standby")
    process = subprocess.Popen(
        [*command, "-c", textwrap.dedent(source)],
        cwd=folder, stdout=subprocess.PIPE, text=True, env=child_environment(environment),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_program_in_standby_is_recorded_on_demand(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        pid = str(first_line(process))
        for number in range(2):
            done = run_hiwater("attach", pid, "-o", f"{number}.hiw", folder=tmp_path)
            assert done.returncode == 0, done.stderr
            again = run_hiwater("attach", pid, "-o", "other.hiw", folder=tmp_path)
            assert (again.returncode, "already" in again.stderr) == (126, True)
            time.sleep(0.3)
            assert run_hiwater("snapshot", pid, "-o", "now.hiw", folder=tmp_path).returncode == 0
            assert run_hiwater("detach", pid, folder=tmp_path).returncode == 0
            capture = hiwater.open(tmp_path / f"{number}.hiw")
            assert (capture.process.ended, capture.problems()) == ("exit", [])
            assert 10_000 < capture.peak.allocated_bytes < 7_000_000  # the old block is from before
            assert "(attached), and still runs" in run_hiwater("report", f"{number}.hiw", folder=tmp_path).stdout
        nobody = run_hiwater("detach", pid, folder=tmp_path)
        assert (nobody.returncode, "no recording that `hiwater attach` began" in nobody.stderr) == (126, True)
    words = run_hiwater("report", "1.hiw", folder=tmp_path).stdout
    assert f"process {pid} was recorded for" in words
    assert "still runs" not in words


@pytest.mark.parametrize(
    ("door", "loop"),
    [
        ("standby", "sys.modules.values()"),
        ("standby", "reversed(sys.modules)"),
        pytest.param("auto", "sys.modules.items()", marks=needs_remote_exec),
        pytest.param("gdb", "sys.modules", marks=needs_calls_by_gdb),
    ],
)
def test_attaching_breaks_no_loop_over_the_modules(door: str, loop: str, tmp_path: Path) -> None:
    """What hiwater imports must not come into it: "dictionary changed size during iteration"."""
    source = f"""
        import os, sys, time
        print(os.getpid(), flush=True)
        for module in {loop}:
            time.sleep({3 if door == "gdb" else 1.5} / len(sys.modules))
        print("whole", flush=True)
        while True:
            time.sleep(0.01)
    """
    words = () if door == "standby" else ("-u",)
    method = () if door == "standby" else ("--method", door)
    with running(tmp_path, *words, source=source) as process:
        pid = first_line(process)
        for _ in range(4):  # on a very busy machine the loop takes longer than is waited
            done = run_hiwater("attach", pid, *method, "-o", "run.hiw", folder=tmp_path)
            if "try again" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        assert process.stdout is not None and process.stdout.readline() == "whole\n"


@needs_remote_exec
def test_attaching_takes_no_module_that_the_program_is_importing(tmp_path: Path) -> None:
    """Of a module that is not complete, hiwater would get the part that is there, and fail in the program."""
    source = """
        import os, sys, time
        class Slow:
            def find_spec(self, name, path, target=None):
                for _ in range(100 if name == "json.decoder" else 0):
                    time.sleep(0.01)
        sys.meta_path.insert(0, Slow())
        print(os.getpid(), flush=True)
        import json
        while True:
            time.sleep(0.01)
    """
    with running(tmp_path, "-u", source=source) as process:
        done = run_hiwater("attach", first_line(process), "-o", "run.hiw", folder=tmp_path)
        assert done.returncode == 0, done.stderr


def test_children_by_fork_are_in_standby_too(tmp_path: Path) -> None:
    with running(tmp_path, environment={"FORKS": "1", "PYTHONWARNINGS": "error"}) as process:
        pids = {first_line(process), first_line(process)}
        try:
            for pid in pids:
                done = run_hiwater("attach", str(pid), "-o", f"{pid}.hiw", folder=tmp_path)
                assert done.returncode == 0, done.stderr
        finally:
            for pid in pids - {process.pid}:
                os.kill(pid, signal.SIGKILL)
    assert {hiwater.open(tmp_path / f"{pid}.hiw").process.pid for pid in pids} == pids


def test_standby_leaves_no_file_behind(tmp_path: Path) -> None:
    code = "import os; print(os.getpid())"
    done = run_hiwater("run", "--standby", "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not [name for name in os.listdir("/dev/shm") if f"-{done.stdout.strip()}-" in name]


def test_what_cannot_be_attached_to_is_refused_with_its_reason(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        refused = run_hiwater("attach", str(sleeper.pid), folder=tmp_path)
        assert (refused.returncode, "is not Python" in refused.stderr) == (126, True)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert run_hiwater("attach", "4194999", folder=tmp_path).returncode == 127


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="later versions have sys.remote_exec()")
def test_an_older_python_without_standby_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "-u") as process:
        refused = run_hiwater("attach", str(first_line(process)), folder=tmp_path)
        assert (refused.returncode, "--standby" in refused.stderr) == (126, True)


@needs_remote_exec
def test_remote_debugging_that_is_turned_off_is_named(tmp_path: Path) -> None:
    for words, environment, named in (
        (["-u"], {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, "(PYTHON_DISABLE_REMOTE_DEBUG)"),
        (["-u", "-X", "disable-remote-debug"], None, "(-X disable-remote-debug)"),
    ):
        with running(tmp_path, *words, source=BUSY, environment=environment) as process:
            refused = run_hiwater("attach", str(first_line(process)), folder=tmp_path)
            assert (refused.returncode, named in refused.stderr) == (126, True), refused.stderr


@by_each_method
def test_a_filter_of_system_calls_on_ptrace_is_refused_with_the_remedy(tmp_path: Path, method: str) -> None:
    """Container engines filter these calls where the container does not have CAP_SYS_PTRACE."""
    filtered = (
        "import ctypes, runpy, sys\n"
        f"refuse = ctypes.CDLL({str(compiled.library('filters'))!r}).refuse\n"
        f"assert not any(refuse(number) for number in {PTRACE_CALLS})\n"
        "runpy.run_module('hiwater', run_name='__main__', alter_sys=True)\n"
    )
    with running(tmp_path, "-u", source=BUSY) as process:
        refused = subprocess.run(
            [sys.executable, "-c", filtered, "attach", str(first_line(process)), "--method", method],
            cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (refused.returncode, "does not allow" in refused.stderr) == (126, True), refused.stderr
        assert "no filter of system calls on ptrace" in refused.stderr
        assert process.poll() is None


@pytest.mark.once
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a namespace")
def test_another_namespace_is_refused_without_standby_and_no_hindrance_with_it(tmp_path: Path) -> None:
    for standby in (True, False):
        words = hiwater_command("run", "--standby") if standby else [sys.executable, "-u"]
        command = [
            "unshare",
            "--fork",
            "--pid",
            "--mount-proc",
            *words,
            "-c",
            "import time\nwhile True: time.sleep(0.01)",
        ]
        outer = subprocess.Popen(command, cwd=tmp_path, env=child_environment(), stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(1)
            if outer.poll() is not None:
                pytest.skip("this system allows no namespaces")
            (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            done = run_hiwater("attach", inner, "-o", "inner.hiw", folder=tmp_path)
            wanted = (0, "is being recorded") if standby else (126, "namespace of its own")
            assert (done.returncode, wanted[1] in done.stderr) == (wanted[0], True), done.stderr
        finally:
            if outer.poll() is None:
                for child in Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)  # with its namespace
            outer.communicate()


FREES = """
import ctypes, hiwater
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
for count in (1000, 3000):
    objects = [bytearray(600) for _ in range(count)]
    blocks = [libc.malloc(100) for _ in range(count)]
    with hiwater.record(f"{count}.hiw"):
        del objects[:]
        for block in blocks:
            libc.free(block)
        more = [bytearray(600) for _ in range(count)]
        del more[:]
"""


def test_frees_of_blocks_from_before_the_recording_are_counted(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FREES], cwd=tmp_path, check=True, env=child_environment())

    few, many = (hiwater.open(tmp_path / f"{count}.hiw") for count in (1000, 3000))
    # Each bytearray is an object of Python's and a block of malloc's, which its allocator has from malloc.
    rest = few.totals.frees_from_before - 3000
    assert 0 <= rest < 2000  # the numbers in the list, and what else the loop had
    # What the first recording frees once (values that its import replaced) the second one has not: some tens at most.
    assert 3 * 2000 - 100 < many.totals.frees_from_before - few.totals.frees_from_before < 4 * 2000 + 100
    assert many.problems() == []


def test_an_attached_report_says_how_many_older_blocks_were_freed(tmp_path: Path) -> None:
    source = """
    import time
    old = [bytearray(1000) for _ in range(5000)]
    print(__import__("os").getpid(), flush=True)
    while not __import__("os").path.exists("free"):
        time.sleep(0.01)
    del old
    open("done", "w").close()
    time.sleep(1000)
    """
    with running(tmp_path, source=source) as process:
        pid = str(first_line(process))
        assert run_hiwater("attach", pid, "-o", "late.hiw", folder=tmp_path).returncode == 0
        (tmp_path / "free").touch()
        wait_until((tmp_path / "done").exists)
        assert run_hiwater("detach", pid, folder=tmp_path).returncode == 0
    told = run_hiwater("report", "late.hiw", folder=tmp_path).stdout
    found = re.search(r"([0-9,]+) blocks from before the recording were freed during it: they are in no figure", told)
    assert found is not None, told
    assert int(found[1].replace(",", "")) >= 10_000


CHILDREN = """
import multiprocessing, os, subprocess, sys, time
def work():
    print(f"{os.getpid()}\\n", end="", flush=True)
    time.sleep(1000)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work, daemon=True).start()
    code = "import os, time; os.write(1, f'{os.getpid()}{os.linesep}'.encode()); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", code])
    work()
"""


@pytest.mark.parametrize("how", ["environment", "option"])
def test_every_process_of_a_program_is_in_standby(tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(CHILDREN)
    words = (
        [sys.executable, "program.py"] if how == "environment" else hiwater_command("run", "--standby", "program.py")
    )
    environment = child_environment({"HIWATER": "standby"} if how == "environment" else {})
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        pids = [first_line(process) for _ in range(3)]
        for pid in pids:
            done = run_hiwater("attach", str(pid), "-o", f"{pid}.hiw", folder=tmp_path)
            assert done.returncode == 0, done.stderr
        assert sorted(hiwater.open(tmp_path / f"{pid}.hiw").process.pid for pid in pids) == sorted(pids)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_standby_by_the_environment_changes_nothing_that_the_program_sees(tmp_path: Path) -> None:
    code = "import sys, threading; print(sorted(sys.modules), threading.active_count(), sys.argv)"
    seen = []
    for environment in ({}, {"HIWATER": "standby"}, {"HIWATER": "something else"}):
        done = subprocess.run(
            [sys.executable, "-c", code, "word"], cwd=tmp_path, capture_output=True, text=True, check=True,
            env=child_environment(environment)
        )  # fmt: skip
        assert done.stderr == ""
        seen.append(done.stdout)
    assert seen[0] == seen[2]
    assert seen[0].split("]")[1:] == seen[1].split("]")[1:]


@by_each_method
def test_a_program_that_knows_nothing_of_it_is_attached_to(tmp_path: Path, method: str) -> None:
    with running(tmp_path, "-u", source=BUSY) as process:
        pid = str(first_line(process))
        done = run_hiwater("attach", pid, "--method", method, "-o", "busy.hiw", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: hiwater.open(tmp_path / "busy.hiw").totals.allocations > 1000)
        done = run_hiwater("detach", pid, "--method", method, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert process.poll() is None
    capture = hiwater.open(tmp_path / "busy.hiw")
    assert (capture.process.ended, capture.problems()) == ("exit", [])
    assert capture.peak.allocated_bytes > 10_000


@by_each_method
def test_a_main_thread_in_select_is_refused_with_the_reason(tmp_path: Path, method: str) -> None:
    with running(tmp_path, "-u", source=SELECTS) as process:
        refused = run_hiwater("attach", str(first_line(process)), "--method", method, folder=tmp_path)
        assert (refused.returncode, "in C code: select" in refused.stderr) == (126, True), refused.stderr
        assert process.poll() is None
    assert not list(tmp_path.glob("*.hiw"))


@pytest.mark.once
@needs_gdb
def test_a_missing_gdb_is_named(tmp_path: Path) -> None:
    with running(tmp_path, "-u", source=SELECTS) as process:
        pid = str(first_line(process))
        nothing = run_hiwater("attach", pid, "--method", "gdb", folder=tmp_path, environment={"PATH": str(tmp_path)})
        assert (nothing.returncode, "there is no gdb here" in nothing.stderr) == (126, True), nothing.stderr
        assert process.poll() is None


@pytest.mark.once
def test_a_gdb_that_cannot_call_functions_is_not_let_near_the_process(tmp_path: Path) -> None:
    """As gdb 13 on a processor with AMX: what it had interrupted fails with an error that no program expects."""
    broken = tmp_path / "bin" / "gdb"
    broken.parent.mkdir()
    problem = "Couldn't write extended state status: Bad address."
    broken.write_text(f'#!/bin/sh\necho " $* " >> {tmp_path}/calls\necho "{problem}" >&2\nexit 1\n')
    broken.chmod(0o755)
    with running(tmp_path, "-u", source=BUSY) as process:
        pid = str(first_line(process))
        path = {"PATH": f"{broken.parent}:{os.environ['PATH']}"}
        refused = run_hiwater("attach", pid, "--method", "gdb", folder=tmp_path, environment=path)
        assert refused.returncode == 126
        assert f"this gdb cannot call functions in a process on this machine ({problem})" in refused.stderr
        assert f" {pid} " not in (tmp_path / "calls").read_text()


def test_a_process_that_ends_before_it_is_reached_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running(tmp_path, "-u", source=BUSY) as process:
        pid = first_line(process)
        with pytest.raises(hiwater.errors.AttachRefused, match="ended before it ran hiwater's script"):
            injected.ask(pid, {"do": "attach"}, 30, lambda *_: process.kill())
    assert not list(tmp_path.glob("hiwater-attach-*"))


def test_an_interrupted_attach_begins_no_recording_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scripts: list[str] = []

    def interrupted(_: int, script: str) -> None:
        scripts.append(script)
        signal.raise_signal(signal.SIGINT)

    with running(tmp_path, "-u", source=BUSY) as process, pytest.raises(KeyboardInterrupt):
        injected.ask(first_line(process), {"do": "attach", "output": str(tmp_path / "late.hiw")}, 30, interrupted)
    subprocess.run([sys.executable, scripts[0]], check=True)
    assert not list(tmp_path.glob("*.hiw"))
    assert not list(tmp_path.glob("hiwater-attach-*"))


@pytest.mark.once
@needs_gdb
def test_a_process_with_another_debugger_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "-u", source=BUSY) as process:
        pid = first_line(process)
        debugger = subprocess.Popen(["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "shell touch there", "-ex",
            "shell sleep 1000"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)  # fmt: skip
        try:
            wait_until((tmp_path / "there").exists)
            refused = run_hiwater("attach", str(pid), "--method", "gdb", folder=tmp_path)
            assert (refused.returncode, "has another debugger" in refused.stderr) == (126, True), refused.stderr
        finally:
            os.killpg(debugger.pid, signal.SIGKILL)
            debugger.wait()
