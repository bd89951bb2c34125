"""`hiwater sample` as it is typed: what it sees, how it ends, and what is left when it is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

import hiwater
from capture_builder import DTYPES, TABLES, header_fields
from children import run_hiwater
from hiwater._os import processes
from hiwater.capture import Capture, writer
from hiwater.errors import HiwaterError
from hiwater.sampling.watcher import Watcher

MIB = 1 << 20


def sample(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_hiwater("sample", *words)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_that_is_reaped_just_after_it_was_listed_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are found in lists, which are a moment old when the processes in them are opened."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(processes, "children_of", lambda pid: [child.pid] if pid == os.getppid() else [])

    watcher = Watcher(os.getppid(), Mock(), interval_ns=1_000_000)
    for turn in range(4):
        watcher._tick(turn)
        if turn == 1:
            child.kill()
            child.wait()
    assert [process.pid for process in watcher.processes] == [os.getppid(), child.pid]
    assert watcher.processes[1].end_ns is not None


def test_the_writer_and_the_builder_describe_the_same_file() -> None:
    said = writer.schema()
    ours = {field[0]: field for field in said["header"]}
    assert [ours[field[0]] for field in header_fields()] == header_fields()
    tables = {table["name"]: table for table in said["tables"]}
    written = [name for name in TABLES if name != "pressure"]  # that one is the engine's alone
    for name in written[1:]:
        assert tables[name]["record_bytes"] == DTYPES[name].itemsize
        assert [field[0] for field in tables[name]["fields"]] == list(DTYPES[name].names)
    assert [table["name"] for table in said["tables"]][: len(written)] == written


def test_children_that_live_for_some_samples_are_all_seen(tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "for n in range(10):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        x = b'a' * (n * 1_000_000); time.sleep(0.1); os._exit(n)\n"
        "    os.waitpid(pid, 0)\n"
    )
    path = tmp_path / "t.hiw"
    assert sample("--interval", "1ms", "-o", path, "--", *python(program)).returncode == 0
    children = hiwater.open(path).processes[1:]
    assert len(children) == 10
    assert all(child.end_ns is not None and len(child.at_ns) and child.peak_bytes > 0 for child in children)
    assert "between two samples were not seen" in run_hiwater("report", path).stdout


def test_the_peak_of_a_command_is_the_kernels_own(tmp_path: Path) -> None:
    path = tmp_path / "t.hiw"
    done = sample("-i", "1s", "-o", path, "--", *python("len([0] * 30_000_000)"))
    capture = hiwater.open(path)
    assert done.returncode == 0 and re.search(r"resident \((exact|within .*)\) in", done.stderr) and done.stdout == ""
    assert capture.resident.exact and 229 < capture.resident.peak_bytes / MIB < 260
    assert capture.process.mode == "timeline" and capture.process.ended == "exit" and capture.process.exit_code == 0
    assert capture.problems() == []


@pytest.mark.parametrize("words", [["--no-children"], ["--interval", "10s"]], ids=["not-watched", "not-seen"])
def test_the_peak_of_a_child_is_not_the_commands(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "t.hiw"
    child = "len([0] * 30_000_000)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert sample(*words, "-o", path, "--", *python(code)).returncode == 0
    capture = hiwater.open(path)
    assert len(capture.processes) == 1 and capture.resident.peak_bytes < 100 * MIB


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_the_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    assert sample("-q", "-o", tmp_path / "t.hiw", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_the_signal_that_ended_it_is_raised_again(tmp_path: Path, number: signal.Signals) -> None:
    done = sample("-q", "-o", tmp_path / "t.hiw", "--", "sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number
    assert hiwater.open(tmp_path / "t.hiw").process.exit_code == 128 + number


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "nothing to sample"),
        (("python",), 2, "hiwater sample -- python"),
        (("4194305",), 127, "no process 4194305"),
        (("--", "no-such-command"), 127, "no command 'no-such-command'"),
        (("--", "/etc/passwd"), 126, "cannot be run"),
        (("-i", "0", "--", "true"), 2, "is not a duration"),
        (("-o", "/nowhere/t.hiw", "--", "true"), 125, "no folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    done = run_hiwater("sample", *words, folder=tmp_path)
    assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def begin(path: Path, *words: str) -> subprocess.Popen[str]:
    """A sampler at a millisecond, at work."""
    command = [sys.executable, "-m", "hiwater", "sample", "-i", "1ms", "-o", str(path), *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def while_it_watches(path: Path, readings: int = 1) -> Capture:
    """The capture as it is while it is written, once that many readings are in it."""
    for _ in range(1000):
        with suppress(HiwaterError):
            capture = hiwater.open(path)
            if len(capture.timeline) >= readings:
                return capture
        time.sleep(0.03)
    raise AssertionError(f"{readings} readings do not come")


def test_a_process_that_dies_ends_it_cleanly(tmp_path: Path) -> None:
    target = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    watching = begin(tmp_path / "t.hiw", str(target.pid))
    live = while_it_watches(tmp_path / "t.hiw", 30)
    target.communicate()
    said = watching.communicate()[1]
    assert watching.returncode == 0 and f"process {target.pid} has ended after" in said
    assert "Traceback" not in said
    assert len(hiwater.open(tmp_path / "t.hiw").timeline) >= len(live.timeline)


def test_an_interrupt_ends_the_watching_and_not_the_process(tmp_path: Path) -> None:
    target = subprocess.Popen(["sleep", "30"])
    watching = begin(tmp_path / "t.hiw", str(target.pid))
    while_it_watches(tmp_path / "t.hiw")
    watching.send_signal(signal.SIGINT)
    said = watching.communicate()[1]
    assert watching.returncode == 0 and "runs on" in said and target.poll() is None
    target.kill()
    target.wait()
    assert hiwater.open(tmp_path / "t.hiw").processes[0].end_ns is None


def test_a_killed_sampler_leaves_a_readable_capture(tmp_path: Path) -> None:
    path = tmp_path / "t.hiw"
    watching = begin(path, "--", "sleep", "60")
    live = while_it_watches(path, 100)
    watching.kill()
    os.kill(live.process.pid, signal.SIGKILL)
    watching.communicate()
    capture = hiwater.open(path)
    assert (live.process.ended, capture.process.ended) == ("recording", "killed")
    assert len(capture.timeline) >= len(live.timeline)


def test_the_time_limit_stops_the_sampling_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hiwater", "sample", "-t", "100ms", "-o", str(tmp_path / "t.hiw")]
    with subprocess.Popen(
        [*words, "--", "sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None and "runs on" in process.stderr.readline()
        process.communicate("go on\n")
    assert process.returncode == 3


def test_scopes_that_the_program_tells_of_are_in_the_capture(tmp_path: Path) -> None:
    code = (
        "import time; from hiwater.sampling.scope_file import append; a = time.monotonic_ns(); time.sleep(.05); "
        "append('load \"it\"', a, time.monotonic_ns(), peak_bytes=5)"
    )
    sample("-q", "-o", tmp_path / "t.hiw", "--", *python(code))
    (scope,) = hiwater.open(tmp_path / "t.hiw").scopes
    assert scope.name == 'load "it"' and scope.end_ns - scope.start_ns > 50e6
    assert (scope.start_bytes, scope.peak_bytes) == (None, 5)


def test_the_command_finds_its_world_as_it_was(tmp_path: Path) -> None:
    code = (
        "import os, signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, "
        "sorted(os.listdir('/proc/self/fd'))[:4], os.environ.pop('HIWATER_SCOPES', '') != '')"
    )
    done = sample("-q", "-o", tmp_path / "t.hiw", "--", *python(code))
    assert done.stdout == "True ['0', '1', '2', '3'] True\n" and done.stderr == ""


def test_a_report_in_words_and_for_machines(tmp_path: Path) -> None:
    import json

    import schemas

    path = tmp_path / "t.hiw"
    sample("-q", "-i", "1ms", "-o", path, "--", "sh", "-c", "sleep .5; exit 4")
    text = run_hiwater("report", path, check=True).stdout
    assert "watched from outside" in text and "sleep .5" in text and "allocated" not in text
    said = json.loads(run_hiwater("report", path, "--format", "json", check=True).stdout)
    schemas.check(said, "report")
    assert [process["exit_status"] for process in said["processes"]] == [4, None]


def test_a_long_recording_is_thinned_and_keeps_its_heights() -> None:
    from hiwater.sampling import recording

    thinned = recording._Thinned()
    kept = [thinned.take(number, number % 1000) for number in range(900_000)]
    rows = [row for row in kept if row is not None]
    assert 400_000 < len(rows) < 600_000 and rows == sorted(rows)
    assert max(row[1] for row in rows[-1000:]) == 999


def test_a_fault_of_ours_leaves_the_command_alone(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hiwater.cli import main\nfrom hiwater.sampling.recording import SampleRecording\n"
        "def fails(*_): raise RuntimeError('ours')\nSampleRecording.sampled = fails\n"
        "sys.exit(main(['sample', *sys.argv[1:]]))"
    )
    words = [*python(code), "-o", str(tmp_path / "t.hiw"), "--", "sh", "-c", "sleep .1; echo done; exit 9"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, "done\n") and "RuntimeError: ours" in done.stderr
