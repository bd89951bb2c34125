"""The last lines of `hiwater run`: the first lines of the report on the whole run, however its first process ends."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from children import hiwater_command, run_hiwater
from packages import skip_without
from page_reader import Page
from recording import child_environment, needs_engine
from waiting import wait_until

pytestmark = needs_engine

WORKERS = """
    import multiprocessing, os, resource, signal, sys, time
    def work(number):
        if number == 2:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            try: bytearray(2 << 30)
            except MemoryError: pass
            return
        held = bytearray(20_000_000 * (number + 1))
        open(f"holds{number}", "w").close()
        while not (os.path.exists("holds0") and os.path.exists("holds1")): time.sleep(0.01)
        time.sleep(0.2)
        if number == 1: os.kill(os.getpid(), signal.SIGKILL)
    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        workers = [context.Process(target=work, args=(number,)) for number in range(3)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
        print(*(worker.pid for worker in workers))
"""


def written(folder: Path, text: str, name: str = "program.py") -> Path:
    program = folder / name
    program.write_text(textwrap.dedent(text))
    return program


def last_lines(said: str) -> list[str]:
    return [line.removeprefix("hiwater: ") for line in said.splitlines() if line.startswith("hiwater: ")]


def run_to_death(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    written(folder, text)
    return subprocess.run(
        hiwater_command("run", *options, "-o", "run.hiw", "program.py"),
        cwd=folder, capture_output=True, text=True, env=child_environment(), timeout=300, check=False,
    )  # fmt: skip


def are_first_lines_of_report(lines: list[str], folder: Path) -> bool:
    """All but the last, which has the path of the capture."""
    report = run_hiwater("report", "run.hiw", folder=folder, check=True).stdout.splitlines()
    return ["hiwater  " + lines[0], *lines[1:-1]] == [
        line.replace(f"{folder}/", "") for line in report[: len(lines) - 1]
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_they_tell_of_the_workers_what_the_report_does(tmp_path: Path, method: str) -> None:
    written(tmp_path, WORKERS)
    done = run_hiwater("run", "-o", "run.hiw", "program.py", method, folder=tmp_path, check=True)
    _, killed, refused = done.stdout.split()
    lines = last_lines(done.stderr)

    assert lines[0] == "4 processes on 1 machine"
    (about_killed,) = [line for line in lines if line.startswith(f"process {killed} ")]
    assert re.match(rf"process {killed} was killed \(SIGKILL\) after [\d.]+ s$", about_killed)
    (about_refused,) = [line for line in lines if line.startswith(f"process {refused} ")]
    assert about_refused.endswith("a request for memory was refused, of 2.0 GiB at program.py:6 in work")
    (at_once,) = [line for line in lines if " allocated at once by " in line]
    assert re.search(r"most at program\.py:9 in work: 57\.\d MiB", at_once)  # what else is live moves the moment
    assert lines[-1] == "capture run.hiw: read it with `hiwater report run.hiw`"
    assert are_first_lines_of_report(lines, tmp_path)

    oom = run_hiwater("report", "run.hiw", "--at", "oom", folder=tmp_path, check=True)
    assert "memory was refused to 1 of 4 processes, which are shown" in oom.stderr
    assert f"process {refused} " in oom.stdout
    assert "allocated at the moment memory was refused" in oom.stdout


def test_a_killed_worker_of_a_pool_is_told_of_and_those_that_the_pool_ends_are_not(tmp_path: Path) -> None:
    text = """
        import multiprocessing, os, signal, time
        def die(number):
            held = bytearray(30_000_000)
            print(os.getpid(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                before = {one.pid for one in pool._pool}
                pool.apply_async(die, (0,))
                while before <= {one.pid for one in pool._pool}: time.sleep(0.01)
                pool.map(abs, range(4))
    """
    done = run_to_death(tmp_path, text)
    assert done.returncode == 0
    lines = last_lines(done.stderr)
    assert [line for line in lines if line.startswith("process ")] == [lines[1]]
    assert lines[1].startswith(f"process {done.stdout.strip()} was killed (SIGKILL) after ")
    assert any("28.6 MiB" in line and "program.py:4 in die" in line for line in lines)
    assert are_first_lines_of_report(lines, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_a_signal_left_to_its_default_ends_the_program_with_them(tmp_path: Path, number: signal.Signals) -> None:
    text = f"""
        import os
        held = bytearray(30_000_000)
        print("before", flush=True)
        os.kill(os.getpid(), {number:d})
        print("after", flush=True)
    """
    done = run_to_death(tmp_path, text)
    assert (done.returncode, done.stdout) == (-number, "before\n")
    told, peaks, most, capture = last_lines(done.stderr)
    assert re.match(rf"process \d+ was killed \({number.name}\) after ", told)
    assert peaks.startswith("peak 28.")
    assert "most at program.py:3 in <module>: 28.6 MiB" in most
    assert capture == "capture run.hiw: read it with `hiwater report run.hiw`"

    quiet = run_to_death(tmp_path, text, "-q")
    assert (quiet.returncode, quiet.stderr) == (-number, "")


def test_a_death_beside_other_threads_does_not_wait_for_them(tmp_path: Path) -> None:
    """Nothing of the program may run on after the signal: not while another process reads the captures."""
    text = """
        import os, signal, threading, time
        def count():
            while True:
                os.write(1, b"%d\\n" % (time.monotonic_ns() // 1_000_000))
                time.sleep(0.001)
        threading.Thread(target=count, daemon=True).start()
        time.sleep(0.2)
        at = time.monotonic_ns() // 1_000_000
        os.write(1, b"%d at\\n" % at)
        os.kill(os.getpid(), signal.SIGTERM)
    """
    written(tmp_path, text)
    with subprocess.Popen(
        hiwater_command("run", "-o", "run.hiw", "program.py"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        # Ends with the program: the one that writes the lines does not hold it.
        counted = process.stdout.read().splitlines()
        are_there_yet = bool(select.select([process.stderr], [], [], 0)[0])
        said = process.stderr.read()
    assert process.returncode == -signal.SIGTERM
    killed = next(int(line.split()[0]) for line in counted if line.endswith(" at"))
    assert int(counted[-1].split()[0]) - killed < 150 or not are_there_yet
    assert "was killed (SIGTERM)" in last_lines(said)[0]


def test_a_death_beside_workers_tells_of_all(tmp_path: Path) -> None:
    text = """
        import os, signal, time
        if os.fork() == 0:
            held = bytearray(50_000_000)
            os._exit(0)
        os.wait()
        os.kill(os.getpid(), signal.SIGTERM)
    """
    lines = last_lines(run_to_death(tmp_path, text).stderr)
    assert lines[0] == "2 processes on 1 machine"
    assert "was killed (SIGTERM)" in lines[1]
    assert any("most at program.py:4 in <module>: 47.7 MiB" in line for line in lines)


def test_an_exec_leaves_them_to_the_program_that_follows(tmp_path: Path) -> None:
    text = """
        import os, sys
        stage = int(sys.argv[1]) if len(sys.argv) > 1 else 1
        held = b"x" * (10_000_000 * stage)
        print("stage", stage, flush=True)
        if stage < 3: os.execv(sys.executable, [sys.executable, __file__, str(stage + 1)])
    """
    done = run_to_death(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "stage 1\nstage 2\nstage 3\n")
    lines = last_lines(done.stderr)
    assert lines[0] == "1 process (3 programs, one after another) on 1 machine"
    assert any("most at program.py:4 in <module>: 28.6 MiB" in line for line in lines)
    assert lines[-1] == "capture run.hiw: read it with `hiwater report run.hiw`"
    assert are_first_lines_of_report(lines, tmp_path)
    assert run_to_death(tmp_path, text, "-q").stderr == ""


def test_programs_that_follow_each_other_are_one_process_everywhere(tmp_path: Path) -> None:
    text = """
        import os, sys, time
        stage = int(sys.argv[1]) if len(sys.argv) > 1 else 0
        held = b"x" * (10_000_000 * stage)
        if stage == 1 and os.fork() == 0:
            time.sleep(0.2)
            os._exit(0)
        if stage < 3: os.execv(sys.executable, [sys.executable, __file__, str(stage + 1)])
        os.wait()
    """
    done = run_to_death(tmp_path, text)
    assert last_lines(done.stderr)[0] == "2 processes (5 programs) on 1 machine"

    def report(*words: str) -> str:
        return run_hiwater("report", "run.hiw", *words, folder=tmp_path, check=True).stdout

    assert "; a process has a row for each program that it executed\n" in report()
    assert report("--format", "markdown").startswith("### Memory of 2 processes (5 programs)\n")
    said = json.loads(report("--format", "json"))
    assert (said["run"]["captures"], said["run"]["processes"], said["aggregate"]["processes"]) == (5, 2, 2)
    assert 30e6 <= said["aggregate"]["allocated"]["bytes"] <= 31e6  # the last program's
    report("--format", "html", "-o", "page.html")
    page = Page((tmp_path / "page.html").read_text("utf-8")).unpacked.head
    assert "a process has a row for each program that it executed" in page["run"]["notes"]
    (whole,) = (one["whole"] for one in page["captures"] if "whole" in one)
    assert (whole["processes"], whole["words"]) == (2, "2 processes (5 programs)")


def test_the_program_never_sees_the_process_that_writes_them(tmp_path: Path) -> None:
    text = """
        import atexit, os, signal
        signal.signal(signal.SIGCHLD, lambda *_: print("a child ended", flush=True))
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        signal.set_wakeup_fd(-1)
    """
    program = written(tmp_path, text)
    plain = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    done = run_hiwater("run", "-o", "run.hiw", "program.py", folder=tmp_path, check=True)
    assert done.stdout == plain.stdout == "a child ended\n"
    assert last_lines(done.stderr)[0] == "2 processes on 1 machine"


def test_without_that_process_they_are_of_the_first_process(tmp_path: Path) -> None:
    """Under a ceiling in which no second interpreter starts, for one."""
    text = """
        import os, resource, sys
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        held = bytearray(20_000_000)
        sys.executable = ""
    """
    lines = last_lines(run_to_death(tmp_path, text).stderr)
    assert [line.split()[0] for line in lines if "allocated at the peak; most " not in line] == [
        "peak",
        "capture",
        "these",
    ]
    assert lines[-1] == "these figures are of the first process alone: the others are in run.hiw.d"


def test_a_prefork_server_tells_of_its_workers(tmp_path: Path) -> None:
    skip_without("gunicorn")
    written(
        tmp_path,
        """
        held = []
        def application(environ, start_response):
            held.append(bytearray(60_000_000))
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"done"]
        """,
        "shop.py",
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = (
        "-m",
        "gunicorn",
        "--preload",
        "--no-control-socket",  # one for all servers of a user
        "-w",
        "2",
        "-b",
        f"127.0.0.1:{port}",
        "--log-level",
        "error",
        "shop:application",
    )
    server = subprocess.Popen(
        hiwater_command("run", "-o", "run.hiw", *words), cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env=child_environment(),
    )  # fmt: skip
    try:
        wait_until(lambda: _answers(port))
        time.sleep(0.3)
    finally:
        server.terminate()
        _, said = server.communicate(timeout=300)
    assert server.returncode == 0
    lines = last_lines(said)
    assert lines[0] == "3 processes on 1 machine"
    (at_once,) = [line for line in lines if " allocated at once by " in line]
    assert "shop.py:4 in application: 57.2 MiB" in at_once


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            return bool(answer.read() == b"done")
    except OSError:
        return False


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")])
def test_another_process_writes_what_the_program_would(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Of one process: the engine's figures, and those of its capture, in the same words."""
    text = """
        import decimal, email.message
        objects = [bytearray(700) for _ in range(10_000)]
        reserved = bytes(64 << 20)
        try: bytearray(1 << 62)
        except MemoryError: pass
    """
    written(tmp_path, text)
    done = run_hiwater("run", *options, "-o", "run.hiw", "program.py", folder=tmp_path, check=True)
    by_itself = last_lines(done.stderr)
    ends, other = os.pipe()
    code = f"from hiwater.cli import last_lines; last_lines.main({str(tmp_path / 'run.hiw')!r}, {other})"
    reader = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, pass_fds=[other],
    )  # fmt: skip
    assert os.read(ends, 1) == b"1"
    os.close(ends)
    os.close(other)
    told, *by_another = last_lines(reader.stderr)
    assert by_another == by_itself
    assert re.match(r"process \d+ ended after ", told)


def test_the_lines_are_written_whole_when_the_program_is_killed_before_they_are(tmp_path: Path) -> None:
    """Nobody reads the answer then."""
    run_hiwater("run", "-q", "-o", "run.hiw", "-c", "kept = bytearray(5_000_000)", folder=tmp_path, check=True)
    text = """
import os
from hiwater.cli import last_lines
gone, answer = os.pipe()
os.close(gone)
last_lines.main("run.hiw", answer)
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "hiwater: capture " in done.stderr and "Traceback" not in done.stderr
