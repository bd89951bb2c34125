"""A run of several processes: its main capture, the folder beside it and the index are one run, for every verb."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hiwater
import schemas
from capture_builder import Recording
from children import hiwater_command, run_hiwater
from example_captures import in_memory
from hiwater._os.process_identity import start_ticks_of
from hiwater.analysis import whole_run
from hiwater.capture import at_once, families, run_index
from hiwater.capture.follow import Follower
from hiwater.cli import main
from hiwater.errors import ForeignFile
from page_reader import Page
from recording import SHARE, child_environment, needs_engine, rounds
from waiting import wait_until

pytestmark = needs_engine
RUN = "run-1"
PROGRAM = """\
import os, signal, sys
import hiwater._core as _core

def load(count):
    return [bytearray(1000) for _ in range(count)]

path, count, kill, facts = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "kill", dict(one.split("=", 1)
    for one in sys.argv[4:])
_core.start(path, facts={"argv": '["work.py"]', **facts}, internal_prefix=os.path.dirname(_core.__file__),
    sample_bytes=0)
kept = load(count)
print("ready", flush=True)
sys.stdin.readline()
if kill:
    os.kill(os.getpid(), signal.SIGKILL)
_core.stop(3 if count == 2000 else 0)
"""


def row(event: str, **values: Any) -> bytes:
    texts = dict.fromkeys(("started_by", "capture", "program", "why"), "")
    names = (
        "pid", "start_ticks", "ppid", "exit_code", "started_unix_ns", "duration_ns", "peak_bytes", "peak_blocks",
        "live_bytes", "total_bytes", "total_blocks", "resident_peak_bytes", "inherited_bytes", "at_unix_ns",
    )  # fmt: skip
    return json.dumps({"event": event, **texts, **dict.fromkeys(names, 0), **values}).encode().ljust(511) + b"\n"


def _is_sampled_after(at_ns: int, capture: Follower) -> bool:
    header = capture.read_header()
    return int(header["started_ns"] + header["heartbeat_ns"]) > at_ns


class Job:
    """A main process and three children that hold 1, 2 and 4 MB at the same time; the last one is killed."""

    def __init__(self, folder: Path, children: tuple[int, ...] = (1000, 2000, 4000)) -> None:
        self.main, self.folder = folder / "run.hiw", folder / "run.hiw.d"
        self.folder.mkdir()
        (folder / "work.py").write_text(PROGRAM)
        self.started = time.time_ns()
        run = [self._start(self.main, 500, "stay")]
        assert run[0].stdout is not None and run[0].stdout.readline() == "ready\n"
        run += [
            self._start(
                self.folder / f"child-{count}.hiw",
                count,
                "kill" if count == 4000 else "stay",
                f"ppid={run[0].pid}",
                "started_by=exec",
            )
            for count in children
        ]
        self.pids = [one.pid for one in run]
        self.ticks = [start_ticks_of(pid) for pid in self.pids]
        for one in run[1:]:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        held_by_all = time.monotonic_ns()
        for path in (self.main, *(self.folder / f"child-{count}.hiw" for count in children)):
            with closing(Follower(path)) as capture:
                wait_until(partial(_is_sampled_after, held_by_all, capture))
        for one in run:
            one.communicate("go on\n")

    def _start(self, path: Path, count: int, kill: str, *facts: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(self.main.with_name("work.py")),
            str(path),
            str(count),
            kill,
            f"run_id={RUN}",
            *facts,
        ]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def index(self, *rows: bytes) -> None:
        (self.folder / "index.jsonl").write_bytes(b"".join(rows))

    def rows(self) -> list[bytes]:
        """A row for the first child, which has a capture; two short children; a child that was started and seen, and
        two that were not."""
        first, ticks, at = self.pids[1], self.ticks[1], self.started
        figures = {"duration_ns": 5_000_000, "total_bytes": 1500, "total_blocks": 3, "resident_peak_bytes": 9000}
        short = {"started_by": "fork", "ppid": self.pids[0], **figures}
        return [
            row("started", pid=first, at_unix_ns=at, program="/usr/bin/python3"),
            row("ended", pid=first, start_ticks=ticks, capture="child-1000.hiw", started_unix_ns=at),
            row("ended", pid=90_001, started_unix_ns=at + 1_000_000, peak_bytes=700, **short),
            row("ended", pid=90_002, started_unix_ns=at + 2_000_000, peak_bytes=900, exit_code=1, **short),
            row("killed", pid=self.pids[3], at_unix_ns=at + 9_000_000_000, signal=9),
            row("started", pid=90_003, at_unix_ns=at, program="/opt/python", why="-S"),
            row("started", pid=90_004, at_unix_ns=at, program="/opt/python", why=""),
            b'{"event": "ended", "pid": 1',
        ]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    made = Job(tmp_path_factory.mktemp("job"))
    made.index(*made.rows())
    return made


TOUCHED = """
def touched(count):
    block = bytearray(count)
    block[::4096] = b"x" * len(range(0, count, 4096))
    return block
"""
FORKS = (
    TOUCHED
    + """\
import os, sys, time
import hiwater._core as _core

def start(path, **facts):
    _core.start(path, facts={"argv": '["fork.py"]', "run_id": "run-1", **facts},
        internal_prefix=os.path.dirname(_core.__file__), sample_bytes=0)

main, folder = sys.argv[1:]
start(main)
kept = touched(60_000_000)
time.sleep(0.1)
child = os.fork()
if child == 0:
    start(os.path.join(folder, "child.hiw"), ppid=str(os.getppid()), started_by="fork")
    own = touched(20_000_000)
    for _ in range(35):  # the sampler of a child begins at an allocation
        time.sleep(0.02)
        held = [bytearray(100) for _ in range(10)]
    _core.stop(0)
    os._exit(0)
os.waitpid(child, 0)
_core.stop(0)
"""
)


def test_pages_that_a_fork_shares_count_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main_path, folder = tmp_path / "run.hiw", tmp_path / "run.hiw.d"
    folder.mkdir()
    (tmp_path / "fork.py").write_text(FORKS)
    subprocess.run([sys.executable, tmp_path / "fork.py", main_path, folder], check=True, timeout=300)
    run = hiwater.open_run(main_path)
    parent, child = run.captures
    assert child.process.started_by == "fork" and families.parents(run.captures) == [None, 0]
    (host,) = at_once.machines(run.captures)
    assert host.resident is not None and (host.resident.shared_once, host.resident.processes) == (2, 2)
    once = parent.resident.start_bytes + 60_000_000 + 20_000_000  # the second is of the child alone
    assert 80_000_000 < host.resident.bytes < once + 20_000_000 < parent.resident.peak_bytes + child.resident.peak_bytes
    private = [one.pressure[-1].private_bytes for one in run.captures]
    # The last reading may be of a moment before the last page.
    assert private[1] is not None and private[1] >= 15_000_000
    assert "pages that processes share count once (PSS)" in text_of("report", main_path, capfd=capfd)


POOL = (
    TOUCHED
    + """import multiprocessing
import time

kept = touched(400_000_000)

def work(number):
    own = touched(30_000_000)
    time.sleep(0.4)
    return len(own)

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(4) as pool:
        pool.map(work, range(4), chunksize=1)
"""
)


def test_what_the_workers_of_a_pool_inherit_counts_once(tmp_path: Path) -> None:
    """The workers are forked within some milliseconds, and to read what 400 MB share takes as long."""
    (tmp_path / "pool.py").write_text(POOL)
    done = run_hiwater("run", "-o", tmp_path / "run.hiw", tmp_path / "pool.py")
    assert done.returncode == 0, done.stderr
    (host,) = at_once.machines(hiwater.open_run(tmp_path / "run.hiw").captures)
    assert host.resident is not None and host.resident.processes == host.resident.shared_once == 5
    assert 500_000_000 < host.resident.bytes < 580_000_000


WAIT = (
    TOUCHED
    + """import os, signal, sys, time

reading, writing = os.pipe()
ready, tell = os.pipe()
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(writing)
        own = touched(6_000_000)
        os.write(tell, b"x")
        os.read(reading, 1)  # it asks for no memory until it ends
        os._exit(0)
for _ in children:
    os.read(ready, 1)
time.sleep(0.4)
pss = 0
for pid in [os.getpid(), *children]:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        pss += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
print(pss, flush=True)
if sys.argv[1] == "running":
    input()
for pid in children if sys.argv[1] == "killed" else ():
    os.kill(pid, signal.SIGKILL)
os.close(writing)
for pid in children:
    os.waitpid(pid, 0)
"""
)


def check_waiting(path: Path, pss: int) -> None:
    (host,) = at_once.machines(hiwater.open_run(path).captures)
    assert host.resident is not None and host.resident.processes == host.resident.shared_once == 9
    assert host.resident.bytes > 8 * 6_000_000
    assert host.resident.bytes == pytest.approx(pss, abs=host.resident.error_bytes + 8_000_000)
    assert host.resident.error_bytes < 8 * 6_100_000
    assert host.resident.at_most_bytes is not None and host.allocated is not None
    assert host.resident.at_most_bytes > 8 * 6_000_000 < host.allocated.bytes < 8 * 6_100_000


@pytest.mark.parametrize("ending", ["ended", "killed"])
def test_workers_that_only_wait_count_in_the_sums(tmp_path: Path, ending: str) -> None:
    """They have no recorder's thread: they waited before they were 100 ms old. Their own memory was touched after
    the last sample."""
    (tmp_path / "wait.py").write_text(WAIT)
    done = run_hiwater("run", "-q", "-o", tmp_path / "run.hiw", tmp_path / "wait.py", ending, check=True)
    check_waiting(tmp_path / "run.hiw", int(done.stdout))


def test_workers_that_only_wait_count_in_a_report_while_they_wait(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAIT)
    words = hiwater_command("run", "-q", "-o", tmp_path / "run.hiw", tmp_path / "wait.py", "running")
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as program:
        assert program.stdout is not None
        check_waiting(tmp_path / "run.hiw", int(program.stdout.readline()))
        program.communicate("\n", timeout=300)


# Opening


def test_the_main_capture_and_the_folder_are_the_same_run(job: Job, tmp_path: Path) -> None:
    stranger = Recording()
    stranger.fact("run_id", "of an earlier run")
    stranger.end()
    (job.folder / "old.hiw").write_bytes(stranger.to_bytes())
    (job.folder / "torn.hiw").write_bytes(b"\x89HIW")
    for path in (job.main, job.folder):
        run = hiwater.open_run(path)
        assert next(capture.process.pid for capture in run.captures) == job.pids[0]
        assert sorted(capture.process.pid for capture in run.captures) == sorted(job.pids)
        assert [(one.pid, one.peak_bytes, one.parent_pid) for one in run.short] == [
            (90_001, 700, job.pids[0]),
            (90_002, 900, job.pids[0]),
        ]
        assert [(one.pid, one.program) for one in run.unrecorded] == [(90_003, "/opt/python"), (90_004, "/opt/python")]
        assert "-S" in run.unrecorded[0].why and "not installed" in run.unrecorded[1].why
        assert len(run.unreadable) == 1 and "torn.hiw" in run.unreadable[0]
    assert len(hiwater.open_run(job.main).captures) == 4
    assert hiwater.open(job.main).process.pid == job.pids[0]
    with pytest.raises(ForeignFile, match="is a folder"):
        hiwater.open(job.folder)
    (job.folder / "old.hiw").unlink()
    merged = tmp_path / "merged.hiw"
    done = run_hiwater("merge", job.main, "-o", merged)
    assert (done.returncode, done.stderr.count("torn.hiw")) == (0, 1)
    run = hiwater.open_run(merged)
    assert sorted(capture.process.pid for capture in run.captures) == sorted(job.pids)
    assert len(run.unreadable) == 1 and "torn.hiw" in run.unreadable[0]
    (job.folder / "torn.hiw").unlink()


def test_a_run_of_one_process_ignores_the_folder_of_an_earlier_run(tmp_path: Path) -> None:
    alone, earlier = Recording(), Recording()
    earlier.fact("run_id", RUN)
    for recording, path in ((alone, tmp_path / "run.hiw"), (earlier, tmp_path / "run.hiw.d" / "child.hiw")):
        recording.end()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(recording.to_bytes())
    (tmp_path / "run.hiw.d" / "index.jsonl").write_bytes(row("started", pid=1))
    run = hiwater.open_run(tmp_path / "run.hiw")
    assert len(run.captures) == 1 and not run.is_of_several


@settings(max_examples=rounds(200))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=600),
            st.dictionaries(st.text(max_size=9), st.integers()).map(lambda one: json.dumps(one).encode()),
        )
    )
)
def test_damaged_rows_are_left_out(lines: list[bytes]) -> None:
    good = row("started", pid=7)
    rows = run_index.parse([*lines, good], RUN)
    assert rows[-1]["pid"] == 7
    assert run_index.parse(run_index.text(rows).splitlines()) == rows[-1:]


def test_a_process_that_executes_twice_is_looked_for_after_each(tmp_path: Path) -> None:
    second = 1_000_000_000
    rows = run_index.parse(
        [
            row("started", pid=5, at_unix_ns=10 * second),
            row("started", pid=5, at_unix_ns=20 * second),
            row("ended", pid=5, started_unix_ns=20 * second + 5),
        ],
        RUN,
    )
    assert [one.at_unix_ns for one in run_index.unrecorded([], rows)] == [10 * second]


def test_a_process_is_counted_once_whatever_it_executes() -> None:
    rows = run_index.parse([row("ended", pid=5, start_ticks=ticks) for ticks in (1, 1, 2)], RUN)
    short = run_index.short_processes([], rows)
    assert len(short) == 3 and run_index.process_count([], short) == 2
    recording = Recording()
    recording.header.update(pid=5, process_start_ticks=1)
    recording.fact("run_id", RUN)
    captures = [in_memory(recording)] * 2
    assert (run_index.process_count(captures), run_index.process_count(captures, short)) == (1, 2)


# Shown


def text_of(*words: object, capfd: pytest.CaptureFixture[str]) -> str:
    assert main([*map(str, words)]) == 0
    return capfd.readouterr().out


def test_the_text_answers_first_and_names_every_process(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    out = text_of("report", job.main, capfd=capfd)
    head, killed, answer, worst = out.splitlines()[:4]
    assert "6 processes on 1 machine, 2 more not recorded" in head
    assert killed.startswith(f"process {job.pids[3]} was killed (SIGKILL) after ")
    assert "allocated at once by 4 processes; most at" in answer and "work.py:5 in load" in answer
    assert f"highest: {job.pids[3]}" in worst and "work.py" in worst
    table = out[out.index("\nProcesses") :].splitlines()
    assert str(job.pids[3]) in table[3] and "killed (SIGKILL)" in table[3]  # died: first
    assert str(job.pids[2]) in table[4] and "exit code 3" in table[4] and "(started)" in table[4]
    assert (
        "2 short processes: allocated 2.9 KiB in 6 blocks in all, highest peak 900 B (process 90002), 1 with "
        "an exit code" in out
    )
    assert "2 processes" not in out or out.count("of /opt/python") == 2
    assert "At once" in out
    assert out == text_of("report", job.folder, capfd=capfd)


def test_one_process_of_a_run(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    out = text_of("report", job.main, "--pid", job.pids[2], capfd=capfd)
    assert f"process {job.pids[2]}" in out and "At once" not in out
    assert out == text_of("report", job.folder / "child-2000.hiw", capfd=capfd)
    assert main(["report", str(job.main), "--pid", "1"]) == 2
    assert "no capture of process 1" in capfd.readouterr().err


def test_json_has_children_rows_and_what_was_not_recorded(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    said = json.loads(text_of("report", job.main, "--format", "json", capfd=capfd))
    schemas.check(said, "report")
    assert said["process"]["pid"] == job.pids[0] and sorted(
        one["process"]["pid"] for one in said["children"]
    ) == sorted(job.pids[1:])
    assert all(one["process"]["parent_pid"] == job.pids[0] and "run" not in one for one in said["children"])
    assert said["run"]["short"] == {
        "processes": 2,
        "allocated_bytes": 3000,
        "allocations": 6,
        "highest_peak_bytes": 900,
    }
    assert [one["pid"] for one in said["run"]["unrecorded"]] == [90_003, 90_004]
    assert said["aggregate"]["headline"]["line"] == 5


def test_formats_of_one_capture_show_all_processes_at_once_or_the_chosen_one(
    job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = hiwater.open_run(job.main)
    (host,) = at_once.machines(run.captures, run.short)
    assert host.allocated is not None
    whole = whole_run.at_highest(host)
    assert whole_run.at_highest(host) is whole  # made once for all that show it
    assert whole is not None
    profile, held = tmp_path / "run.pb.gz", whole.peak.allocated_bytes
    for name, shown in (
        ("svg", "a flame graph"),
        ("pprof", "a pprof profile"),
        ("collapsed", "a list of collapsed stacks"),
    ):
        assert main(["report", str(job.main), "--format", name, "-o", str(profile)]) == 0
        words = f"{shown} shows all processes at the instant of their highest sum: "
        assert words in capfd.readouterr().err
        if name == "svg":
            assert f'data-bytes="{held}"' in profile.read_text() and "all processes" in profile.read_text()
        elif name == "collapsed":
            assert sum(int(line.rpartition(" ")[2]) for line in profile.read_text().splitlines()) == held
        assert main(["report", str(job.main), "--format", name, "--at", "end", "-o", str(profile)]) == 0
        assert f"{shown} shows one of 4 processes: {job.pids[0]}, the first" in capfd.readouterr().err
        assert main(["report", str(job.main), "--format", name, "--pid", str(job.pids[2]), "-o", str(profile)]) == 0
        assert shown not in capfd.readouterr().err


def test_a_pprof_profile_of_all_processes_has_no_totals_and_names_each_process(job: Job, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="the extra `pprof` is not installed")
    from hiwater.device_history.pprof_proto import profile_pb2

    path = tmp_path / "run.pb.gz"
    assert main(["report", str(job.main), "--format", "pprof", "-o", str(path)]) == 0
    made: Any = profile_pb2
    profile = made.Profile()
    profile.ParseFromString(gzip.decompress(path.read_bytes()))
    texts = profile.string_table
    assert [texts[one.type] for one in profile.sample_type] == ["inuse_objects", "inuse_space"]
    assert not any(texts[number].startswith("alloc_") for number in profile.comment)
    processes = dict.fromkeys(job.pids, 0)
    for sample in profile.sample:
        (name,) = [texts[label.str] for label in sample.label if texts[label.key] == "process"]
        processes[int(name.split()[0])] += sample.value[1]
    assert all(
        count * 1000 <= processes[pid] <= count * 1400
        for pid, count in zip(job.pids, (500, 1000, 2000, 4000), strict=True)
    )


def test_the_sum_at_once_is_that_of_all_processes(job: Job) -> None:
    run = hiwater.open_run(job.main)
    (host,) = at_once.machines(run.captures, run.short)
    assert host.allocated is not None and host.allocated.at_most_bytes is not None
    assert 7_500_000 <= host.allocated.bytes <= host.allocated.at_most_bytes
    whole = whole_run.at_highest(host)
    assert whole is not None and whole.problems() == []
    assert whole.peak.allocated_bytes == host.allocated.bytes
    threads = {stack.thread.split()[0]: 0 for stack in whole.peak.stacks}
    for stack in whole.peak.stacks:
        if any(frame.function == "load" for frame in stack.frames):
            threads[stack.thread.split()[0]] += stack.bytes
    for pid, count in zip(job.pids, (500, 1000, 2000, 4000), strict=True):
        assert count * 1000 <= threads[str(pid)] <= count * 1200


def test_lines_add_up_to_the_sum_at_once(tmp_path: Path) -> None:
    """The first process frees half of what it has before the second allocates, in the same slice of its time."""
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    for number, file in enumerate((tmp_path / "run.hiw", folder / "1.hiw")):
        recording = Recording()
        recording.header.update(pid=1000 + number, boot_id=b"boot", started_unix_ns=10**18)
        recording.fact("run_id", RUN)
        paths = [recording.path(("load", "/app/a.py", line)) for line in (1, 2)]
        for now, line, count in ((1, 0, 600_000), (2, 1, 400_000), (3, 0, -500_000)) if not number else ((5, 1, 1000),):
            recording.now_ns = now * 10**6
            (recording.allocate if count > 0 else recording.free)(paths[line], abs(count))
            recording.sample(10**6)
        recording.now_ns = 10**7
        recording.end()
        file.write_bytes(recording.to_bytes())
    run = hiwater.open_run(tmp_path / "run.hiw")
    (host,) = at_once.machines(run.captures)
    whole = whole_run.at_instant(host, 10**18 + 6 * 10**6)
    assert whole is not None and whole.problems() == []
    assert whole.peak.allocated_bytes == 501_000
    held = {stack.frames[0].line: stack.bytes for stack in whole.peak.stacks if stack.thread.startswith("1000")}
    assert held == {1: 300_000, 2: 200_000}  # as at the highest moment of the slice, 600 to 400


def test_merged_it_is_the_same_run(job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, again = tmp_path / "one.hiw", tmp_path / "again.hiw"
    assert main(["merge", "-q", "-o", str(one), str(job.main)]) == 0
    assert main(["merge", "-q", "-o", str(again), str(job.folder), str(one)]) == 0
    assert one.read_bytes() == again.read_bytes()
    whole, merged = hiwater.open_run(job.folder), hiwater.open_run(one)
    assert (merged.short, merged.unrecorded) == (whole.short, whole.unrecorded)
    by_pid = [sorted((capture.process for capture in run.captures), key=lambda one: one.pid) for run in (whole, merged)]
    assert by_pid[0] == by_pid[1]
    out = text_of("report", one, capfd=capfd)
    assert "2 more not recorded" in out and "2 short processes" in out


def test_lines_plot_and_diff_take_a_run(job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert text_of("report", job.main, "--format", "lines", capfd=capfd).count("  at ") == 4
    assert text_of("report", job.folder, "--format", "timeline", capfd=capfd).count("process ") >= 4
    other = Job(tmp_path, (1000, 3000))
    out = text_of("diff", job.main, other.main, capfd=capfd)
    assert "the one that grew most is shown" in out


def test_a_page_has_the_processes_and_all_of_them_at_one_instant(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(job.main), "--html", "-o", str(out)]) == 0
    page = Page(out.read_text()).unpacked.head
    rows = page["run"]["processes"]
    assert rows[0]["pid"] == job.pids[3] and rows[0]["is_dead"] and "killed" in rows[0]["ended"]
    assert sorted(row["pid"] for row in rows) == sorted(job.pids)
    assert [page["captures"][row["capture"]]["summary"]["process"]["pid"] for row in rows] == [
        row["pid"] for row in rows
    ]
    assert any("2 short processes" in note for note in page["run"]["notes"]) and any(
        "/opt/python" in note for note in page["run"]["notes"]
    )
    whole = page["captures"][-1]
    assert whole["whole"]["processes"] == 4 and {thread["name"].split()[0] for thread in whole["threads"]} == set(
        map(str, job.pids)
    )
    assert [curve["group"] for curve in whole["timeline"]["series"]] == ["part"] * 4


def test_a_thousand_processes(tmp_path: Path) -> None:
    """They open, and each is in the table or in a sum; the time is bounded."""
    count = 1000 // SHARE
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    for number in range(count):
        recording = Recording()
        recording.header.update(
            pid=1000 + number, process_start_ticks=number, boot_id=b"boot", started_unix_ns=10**18 + number
        )
        for key, value in {"run_id": RUN, "ppid": "1000", "argv": '["work.py"]'}.items():
            recording.fact(key, value)
        for line in range(1, 20):
            recording.allocate(recording.path(("main", "/app/a.py", 1), ("work", "/app/a.py", line)), 1000 + number)
        recording.now_ns = 50_000_000
        recording.sample(1_000_000)
        recording.end()
        (tmp_path / "run.hiw" if number == 0 else folder / f"{number}.hiw").write_bytes(recording.to_bytes())
    began = time.process_time()
    run = hiwater.open_run(tmp_path / "run.hiw")
    assert len(run.captures) == count
    (host,) = at_once.machines(run.captures)
    assert host.allocated is not None
    whole = whole_run.at_highest(host)
    assert whole is not None and len({stack.thread for stack in whole.peak.stacks}) == whole_run.MOST_PROCESSES + 1
    assert whole.peak.allocated_bytes == sum(capture.peak.allocated_bytes for capture in run.captures)
    assert time.process_time() - began < 60
    assert main(["report", str(tmp_path / "run.hiw"), "-o", str(tmp_path / "out.txt")]) == 0
    assert f"… and {count - 10} with lower peaks" in (tmp_path / "out.txt").read_text()
    assert main(["report", str(tmp_path / "run.hiw"), "--html", "-o", str(tmp_path / "out.html")]) == 0
    page = (tmp_path / "out.html").read_text()
    assert len(page) < 4_000_000 and len(Page(page).unpacked.head["run"]["processes"]) == count
