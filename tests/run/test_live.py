"""`hiwater live` on real recordings: in a pseudo-terminal, through Textual's own pilot, and one reading at a time."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import hiwater
from capture_builder import Recording
from children import hiwater_command, run_hiwater
from hiwater._os.procfs import command_of, proportional_bytes
from hiwater.analysis import live_all
from hiwater.analysis.live import LiveProcess, Row
from hiwater.analysis.live_run import LiveRun, open_run
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture import reader, run_index
from hiwater.capture.follow import Follower
from hiwater.cli.live_viewer import Viewer
from hiwater.report.live_views import View
from recording import child_environment, needs_engine
from waiting import PATIENCE_SECONDS, wait_until
from waiting_program import recording

pexpect = pytest.importorskip("pexpect")
pytestmark = needs_engine

# Each line of its input makes it allocate at another line of its own; the last one ends it.
SOURCE = """
    kept = []
    def first(): kept.append(bytearray(5_000_000))
    def second(): kept.append(bytearray(3_000_000))
    first()
    print("ready", flush=True)
    while input() == "more":
        second()
        kept.append([f"text {number}" for number in range(5000)])
        print("done", flush=True)
    raise SystemExit(7)
"""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with recording(tmp_path, SOURCE, "-o", "live.hiw") as process:
        yield process


def more(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write("more\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"


def once(target: object, *words: str) -> str:
    return run_hiwater("live", "--once", *words, target, check=True).stdout


def viewer(target: object, *words: str, columns: int = 80, rows: int = 24, path: str = "") -> pexpect.spawn[str]:
    environment = {**child_environment(), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONPATH": path}
    command = hiwater_command("live", *words, target)
    return pexpect.spawn(
        command[0], command[1:], env=environment, encoding="utf-8", dimensions=(rows, columns), timeout=PATIENCE_SECONDS
    )


# One reading


def test_a_process_and_its_capture_show_the_same_line_with_what_it_holds(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    by_number, by_capture = once(program.pid), once(tmp_path / "live.hiw")
    for text in (by_number, by_capture):
        assert re.search(r"  4\.8 MiB +9\d\.\d %  <-c>:3", text), text
        assert f"process {program.pid}" in text and "recording, " in text
    more(program)
    # Counts that a thread keeps for itself reach the capture a moment later.
    wait_until(lambda: re.search(r"allocated +[789]\.\d MiB now[^$]*  2\.9 MiB .*<-c>:4", once(program.pid)))


def test_hiwaters_tables_are_left_out_of_resident_memory_while_the_recording_goes_on(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    run = open_run(str(tmp_path / "live.hiw"))
    (process,) = run.processes

    def overhead() -> int:
        process.read_sums()
        return int(process.header["overhead_last_bytes"])

    wait_until(overhead)
    running = overhead()  # what follows is of the same reading
    assert process.resident_bytes == process.header["resident_last_bytes"] - running
    run.close()
    program.communicate("enough\n", PATIENCE_SECONDS)
    assert running == pytest.approx(hiwater.open(tmp_path / "live.hiw").resident.overhead_end_bytes, rel=0.5)


@pytest.mark.parametrize("view", View)
def test_every_view_has_something_to_show_or_says_that_there_is_nothing(
    program: subprocess.Popen[str], view: View
) -> None:
    text = once(program.pid, "--view", view)
    expected = {
        "lines": "<-c>:3", "stacks": "first (<-c>:3)", "threads": "MainThread", "kinds": "python",
        "processes": f"→{program.pid:>8}", "devices": "no GPU or other device has been used",
    }  # fmt: skip
    assert expected[view] in text


def test_the_end_of_the_process_is_told(program: subprocess.Popen[str], tmp_path: Path) -> None:
    program.communicate("enough\n", PATIENCE_SECONDS)
    assert "ended with exit code 7" in once(tmp_path / "live.hiw")


def test_a_process_that_has_ended_is_not_named_by_who_has_its_number_now(tmp_path: Path) -> None:
    builder = Recording()
    builder.header["pid"] = os.getpid()
    builder.allocate(builder.path(("main", "/a.py", 1)), 1 << 20)
    builder.end()
    path = tmp_path / "ended.hiw"
    path.write_bytes(builder.to_bytes())
    first_line = once(path).splitlines()[0]
    assert first_line.split() == f"hiwater live process {os.getpid()} ended with exit code 0, 0.00 s".split()


def test_a_process_without_recorded_arguments_is_named_by_those_the_kernel_knows(tmp_path: Path) -> None:
    with recording(tmp_path, SOURCE, "--no-argv", "-o", "live.hiw") as process:
        (shown,) = open_run(str(tmp_path / "live.hiw")).processes
        assert shown.command == " ".join(command_of(process.pid))


def test_lines_hold_what_the_ranking_of_a_report_says(program: subprocess.Popen[str], tmp_path: Path) -> None:
    more(program)
    program.communicate("enough\n", PATIENCE_SECONDS)
    run = open_run(str(tmp_path / "live.hiw"))
    run.read()
    capture = hiwater.open(tmp_path / "live.hiw")
    ranked = [
        ((row.frame.file, row.frame.line), row.bytes)
        for row in rank_lines(capture.tables, capture.end.holdings()).lines
        if row.bytes
    ]
    shown = [
        ((row.frame.file, row.frame.line), row.bytes) for row in run.shown.lines(growth=False) if row.frame is not None
    ]
    assert shown == ranked and len(shown) >= 3
    run.close()


# Reading what has changed


def test_what_has_changed_is_all_that_a_new_reader_finds(program: subprocess.Popen[str], tmp_path: Path) -> None:
    follower = Follower(tmp_path / "live.hiw")

    def is_equal(name: str) -> bool:
        return np.array_equal(follower.read()[name], reader.read(tmp_path / "live.hiw").tables[name])

    for _ in range(4):
        for name in ("strings", "string_bytes", "codes", "nodes", "accounts", "facts"):
            wait_until(lambda name=name: is_equal(name))  # counts of the thread's own are merged a moment later
        tables, whole = follower.read(), reader.read(tmp_path / "live.hiw")
        length = len(tables["timeline"])
        assert length > 0 and np.array_equal(tables["timeline"], whole.tables["timeline"][:length])
        more(program)
    follower.close()


def test_growth_is_counted_from_the_marker(program: subprocess.Popen[str]) -> None:
    run = open_run(str(program.pid))
    run.read()
    run.set_marker()
    assert run.shown.lines(growth=True) == []
    more(program)
    run.read()
    grown = {row.frame.line: row.bytes for row in run.shown.lines(growth=True) if row.frame is not None}
    assert 3 not in grown and 3_000_000 <= grown[4] < 3_000_200
    assert sum(row.bytes for row in run.shown.threads(growth=True)) == sum(grown.values())
    run.close()


def test_readings_are_further_apart_where_one_costs_more_than_a_hundredth(program: subprocess.Popen[str]) -> None:
    view = Viewer(open_run(str(program.pid)), View.lines, 0.05)
    pauses = []
    for _ in range(8):
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        pauses.append(view.read())
    assert pauses[-1] >= 16 * 0.05 and sorted(pauses) == pauses
    view.run.close()


# A run of several processes


PART_OF_A_RUN = """
import os, sys
import hiwater._core as _core
facts = {"run_id": sys.argv[2], "argv": '["part.py"]'}
_core.start(sys.argv[1], facts=facts, internal_prefix=os.path.dirname(_core.__file__), sample_bytes=0)
kept = bytearray(2_000_000)
print("ready", flush=True)
sys.stdin.readline()
_core.stop(0)
"""


@contextmanager
def part(path: Path, run_id: str = "run-1") -> Iterator[subprocess.Popen[str]]:
    """A process of a run, which is recorded until it is told to end."""
    command = [sys.executable, "-c", PART_OF_A_RUN, str(path), run_id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        if process.poll() is None:
            process.communicate("end\n", PATIENCE_SECONDS)


def index_row(pid: int, capture: str, start_ticks: int = 0) -> bytes:
    numbers = {**dict.fromkeys(run_index._NUMBERS["ended"], 0), "start_ticks": start_ticks}
    row = {**numbers, "event": "ended", "pid": pid, "started_by": "fork", "capture": capture}
    return json.dumps(row).encode().ljust(511) + b"\n"


def test_the_folder_of_a_run_shows_all_its_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    with part(tmp_path / "run.hiw") as main:
        with part(folder / "1-1.hiw"), part(folder / "2-2.hiw", "another run"):
            pass
        ended = hiwater.open(folder / "1-1.hiw").tables.header
        of_ended = index_row(ended["pid"], "1-1.hiw", ended["process_start_ticks"])
        started = {
            "event": "started",
            "pid": 4,
            "ppid": main.pid,
            "at_unix_ns": 1,
            "program": "/opt/python",
            "why": "-S",
        }
        of_started = json.dumps(started).encode().ljust(511) + b"\n"
        (folder / "index.jsonl").write_bytes(index_row(2, "") + of_ended + of_started + b'{"event": "end')
        for target in (main.pid, tmp_path / "run.hiw", folder):
            text = once(target, "--view", "processes")
            assert "1 of 2 processes run" in text and "1 short child has ended, 1 not recorded" in text
            assert "1 short process: allocated 0 B" in text
            assert "not recorded: 1 process of /opt/python: it was started with -S" in text
            assert f" {main.pid:>8}" in text and "ended with exit code 0" in text


FORKS = """
    import os, select
    kept = bytearray(30_000_000)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        while not select.select([reading], [], [], 0.01)[0]:  # until its parent has ended
            pass
        os._exit(0)
    print("ready", flush=True)
    input()
"""


def test_pages_that_a_forked_child_shares_count_once_in_the_sum(tmp_path: Path) -> None:
    """The kernel's own PSS is what the sum is compared with, without hiwater's tables."""
    with recording(tmp_path, FORKS, "-o", "run.hiw"):
        view = Viewer(open_run(str(tmp_path / "run.hiw")), View.processes, 1.0)

        def line() -> str:
            view.read()
            return next((row.plain for row in view.figures(200) if "2 of 2 processes run" in row.plain), "")

        def differs_by() -> float:
            pss = sum(proportional_bytes(one.pid, "pss") or 0 for one in view.run.processes)
            found = re.search(r"([0-9.]+) MiB resident \(PSS\)", line())
            tables = sum(int(one.header["overhead_last_bytes"]) for one in view.run.processes)
            return abs(float(found[1]) * 2**20 - (pss - tables)) if found else math.inf

        # The samples of a busy machine are from moments before the child has written to its first pages.
        wait_until(lambda: differs_by() <= 3 << 20)
        assert all((one.shared_excess_bytes or 0) > 10_000_000 for one in view.run.processes)
        # The parent waits, and asks for no memory: its recorder's thread has not come back since the fork.
        parent = view.run.processes[0]
        before = parent.duration_ns
        wait_until(lambda: parent.duration_ns > before + 300_000_000)
        view.run.close()


WAITS = """
    import os
    kept = bytearray(b"x") * 20_000_000
    reading, writing = os.pipe()
    ready, tell = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            os.close(writing)
            own = bytearray(b"x") * 5_000_000
            os.write(tell, b"x")
            os.read(reading, 1)  # until its parent has ended
            os._exit(0)
    for _ in range(4):
        os.read(ready, 1)
    print("ready", flush=True)
    input()
"""


def test_forked_children_that_wait_from_their_first_moments_on_have_the_figures_of_now(tmp_path: Path) -> None:
    """They have no recorder's thread, so their last samples are those of the fork."""
    with recording(tmp_path, WAITS, "-o", "run.hiw"):
        run = open_run(str(tmp_path / "run.hiw"))
        wait_until(lambda: run.read() or len(run.processes) == 5)
        time.sleep(0.3)  # they are older than 100 ms then
        run.read()
        for child in run.processes[1:]:
            assert child.resident_bytes > 24_000_000
            assert child.shared_excess_bytes is not None and child.shared_excess_bytes > 12_000_000
        # On a busy machine the first process reads what they share some time later.
        wait_until(lambda: 40_000_000 < run.all.resident_bytes < 60_000_000 or run.read())
        run.close()


def test_the_sums_of_a_run_are_those_of_its_report(tmp_path: Path) -> None:
    """Also of the time before the viewer came."""
    with recording(tmp_path, WAITS, "-o", "run.hiw"):
        run = open_run(str(tmp_path / "run.hiw"))
        wait_until(lambda: run.read() or len(run.processes) == 5)
        time.sleep(0.3)
        run.read()
        (machine,) = hiwater.open_run(tmp_path / "run.hiw").machines
        allocated, resident = machine.allocated, machine.resident
        assert allocated is not None and resident is not None
        assert run.all.peak[0] == pytest.approx(allocated.bytes, abs=1 << 20)
        assert run.all.resident_peak_bytes == pytest.approx(resident.bytes, abs=2 << 20)
        assert run.all.curve.bytes.max() >= run.all.peak[0] > 35_000_000
        run.close()


def test_the_first_child_is_found_though_its_run_had_no_folder_when_the_viewer_opened_it(tmp_path: Path) -> None:
    path = tmp_path / "run.hiw"
    with part(path) as main:
        runs = [open_run(str(main.pid)), open_run(str(path))]
        for run in runs:
            run.read()
            assert run.problems == []
        folder = tmp_path / "run.hiw.d"
        folder.mkdir()
        with part(folder / "1-1.hiw") as child:
            for run in runs:
                run.read()
                assert [process.pid for process in run.processes] == [main.pid, child.pid]
                run.close()


def shown_next(view: Viewer) -> LiveProcess:
    """The process that is shown after `n` was pressed."""
    assert view.press("n")
    assert isinstance(view.run.shown, LiveProcess)
    return view.run.shown


def test_processes_that_begin_while_the_run_is_viewed_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    with part(tmp_path / "run.hiw") as main:
        view = Viewer(open_run(str(folder)), View.processes, 1.0)
        view.read()
        assert len(view.run.processes) == 1
        with part(folder / "1-1.hiw") as child:
            view.read()
            assert len(view.run.processes) == 2 and view.run.shown is view.run.all
        view.read()
        assert shown_next(view).pid == main.pid
        of_child = shown_next(view)
        assert of_child.pid == child.pid and of_child.ended == "ended with exit code 0" and view.rows(80)
        assert shown_next(view).pid == main.pid
        view.run.close()


def test_a_run_whose_folder_is_removed_is_shown_from_the_files_that_are_open(tmp_path: Path) -> None:
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    with part(tmp_path / "run.hiw") as main, part(folder / "1-1.hiw"):
        view = Viewer(open_run(str(folder)), View.processes, 1.0)
        view.read()
        shutil.rmtree(folder)
        view.read()
        shown = [line.plain for line in view.figures(160)]
        assert f"{str(folder)!r} is gone: processes that begin from now on are not shown" in shown
        assert any("2 of 2 processes run" in line for line in shown)
        assert shown_next(view).pid == main.pid
        folder.mkdir()
        view.read()
        assert view.run.problems == []
        view.run.close()


def test_a_capture_that_is_truncated_while_it_is_viewed_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    (folder / "index.jsonl").write_bytes(index_row(2, ""))
    with part(tmp_path / "run.hiw") as main, part(folder / "1-1.hiw") as child:
        view = Viewer(open_run(str(folder)), View.processes, 1.0)
        view.read()
        of_main = view.run.processes[0]
        before = of_main.header["heartbeat_ns"]
        os.truncate(folder / "1-1.hiw", 100)
        os.truncate(folder / "index.jsonl", 0)
        wait_until(lambda: view.read() and of_main.header["heartbeat_ns"] > before)
        problem = (
            f"process {child.pid}: the capture is truncated: the file ends before its last record. Its figures do "
            "not change any more"
        )
        assert problem in [line.plain for line in view.figures(160)] and view.rows(80)
        assert view.run.shown is view.run.all and main.pid == of_main.pid and view.run.is_running
        os.unlink(tmp_path / "run.hiw")  # the file is open
        view.read()
        assert view.run.problems == [problem]
        view.run.close()


# All processes of a run together


@contextmanager
def run_of(tmp_path: Path, children: int) -> Iterator[tuple[Viewer, list[subprocess.Popen[str]]]]:
    """A viewer of a run of that many children, each of which holds 2,000,000 bytes in line 6, as its parent does."""
    folder = tmp_path / "run.hiw.d"
    folder.mkdir()
    with ExitStack() as stack:
        paths = [tmp_path / "run.hiw", *(folder / f"{number}-1.hiw" for number in range(children))]
        processes = [stack.enter_context(part(path)) for path in paths]
        view = Viewer(open_run(str(tmp_path / "run.hiw")), View.lines, 1.0)
        stack.callback(view.run.close)
        view.read()
        yield view, processes


def held_in_line(rows: list[Row], line: int) -> int:
    return sum(
        row.bytes for row in rows if row.frame is not None and (row.frame.file, row.frame.line) == ("<string>", line)
    )


def test_a_run_of_several_processes_shows_all_of_them_together(tmp_path: Path) -> None:
    with run_of(tmp_path, 2) as (view, processes):
        shown = view.run.shown
        assert shown is view.run.all and "all processes of part.py  recording" in view.figures(100)[0].plain
        (row,) = [row for row in shown.lines(growth=False) if row.frame is not None and row.frame.line == 6]
        assert 6_000_000 <= row.bytes < 6_010_000 and row.blocks is not None and row.blocks >= 3
        assert [row.name for row in shown.threads(growth=False)[:3]] == [
            f"process {process.pid} · MainThread"
            for process in sorted(view.run.processes, key=lambda one: -one.allocated_bytes)
        ]
        for rows in (shown.lines(growth=False), shown.threads(growth=False), shown.kinds(growth=False)):
            total = sum(row.bytes for row in rows)
            assert total == pytest.approx(sum(process.allocated_bytes for process in view.run.processes), rel=0.01)
        threads = [stack.thread for stack in islice(shown.stacks(growth=False), 3)]
        assert sorted(threads) == sorted(f"process {process.pid} · MainThread" for process in processes)
        assert shown.curve.bytes.max() >= shown.peak[0] >= shown.allocated_bytes
        view.press("n")
        assert held_in_line(view.run.shown.lines(growth=False), 6) < 2_005_000
        view.press("a")
        assert view.run.shown is view.run.all


def test_a_child_that_the_viewer_named_is_shown_alone(tmp_path: Path) -> None:
    with run_of(tmp_path, 1) as (_, (main, child)):
        for target, shown in (main.pid, "all processes of part.py"), (child.pid, f"process {child.pid}  part.py"):
            assert shown in once(target), target


def test_a_process_that_is_shown_alone_and_has_ended_stays_while_a_marker_is_set(tmp_path: Path) -> None:
    with run_of(tmp_path, 1) as (view, (_, child)):
        while shown_next(view).pid != child.pid:
            pass
        child.communicate("end\n", PATIENCE_SECONDS)
        view.read()
        view.press("m")
        view.press("g")
        assert isinstance(view.run.shown, LiveProcess) and view.run.shown.pid == child.pid
        assert view.figures(80) and view.rows(80)
        assert held_in_line(view.run.shown.lines(growth=False), 6) >= 2_000_000


def test_growth_of_all_processes_is_counted_from_the_marker_or_from_the_start_of_those_that_begin_later(
    tmp_path: Path,
) -> None:
    with run_of(tmp_path, 1) as (view, _):
        view.press("m")
        assert held_in_line(view.run.shown.lines(growth=True), 6) == 0
        with part(tmp_path / "run.hiw.d" / "9-9.hiw"):
            view.read()
            assert 2_000_000 <= held_in_line(view.run.shown.lines(growth=True), 6) < 2_005_000
            assert len(view.run.processes) == 3
        view.read()  # what the process held is gone with it
        assert held_in_line(view.run.shown.lines(growth=True), 6) == 0


def test_the_sums_of_more_processes_than_are_read_in_full_are_in_a_row_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_all, "MOST_PROCESSES", 2)
    with run_of(tmp_path, 3) as (view, processes):
        shown = view.run.shown
        for rows in (shown.lines(growth=False), shown.threads(growth=False), shown.kinds(growth=False)):
            (rest,) = [row for row in rows if row.name == "2 smaller processes"]
            assert rest.bytes >= 4_000_000
            assert sum(row.bytes for row in rows) == pytest.approx(shown.allocated_bytes, rel=0.01)
        assert any("2 smaller processes" in row.plain for row in view.rows(80))
        view.press("m")
        assert held_in_line(shown.lines(growth=True), 6) == 0
        read = [process for process in view.run.processes if process.is_read]
        assert len(read) == 2
        (ended,) = [process for process in processes if process.pid == read[-1].pid]
        ended.communicate("end\n", PATIENCE_SECONDS)
        view.read()
        # Its place is free for another one, whose growth since the marker is known as a sum alone.
        assert not read[-1].is_read and sum(process.is_read for process in view.run.processes) == 2
        assert held_in_line(shown.lines(growth=True), 6) == 0
        assert [row.name for row in shown.lines(growth=False) if row.name.endswith("smaller process")] == [
            "1 smaller process"
        ]
        while shown_next(view) is not read[-1]:
            pass
        assert read[-1].is_read and held_in_line(read[-1].lines(growth=False), 6) >= 2_000_000


# What cannot be shown


def refused(*words: object, exit_code: int = 2) -> str:
    done = run_hiwater("live", "--once", *words)
    assert done.returncode == exit_code and done.stdout == "" and done.stderr.count("\n") == 1, done
    return done.stderr


def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "foreign.hiw").write_text("text")
    (tmp_path / "empty").mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert f"there is no process {gone.pid}" in refused(gone.pid, exit_code=127)
    assert "has no recording; start the program with `hiwater run`" in refused(os.getpid())
    assert "not a capture" in refused(tmp_path / "foreign.hiw")
    assert "there is no capture" in refused(tmp_path / "missing.hiw")
    assert "there is no capture in" in refused(tmp_path / "empty")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_process_of_another_user_is_refused(program: subprocess.Popen[str]) -> None:
    source = f"""
import os, sys
from hiwater import cli
cli.main(["live", "--once", "{program.pid}"])  # all modules are loaded: the other user may not read them
cli.main(["live", "--once", "missing"])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
sys.exit(cli.main(["live", "--once", "{program.pid}"]))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 126 and "cannot be read (Permission denied); it belongs to another user" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_root_without_the_capability_is_told_which_one(program: subprocess.Popen[str]) -> None:
    less = ",".join(f"-{capability}" for capability in ("sys_ptrace", "perfmon", "sys_admin"))
    as_in_a_container = ["setpriv", f"--bounding-set={less}", f"--inh-caps={less}"]
    done = subprocess.run(
        [*as_in_a_container, *hiwater_command("live", "--once", program.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 126 and "root needs the capability CAP_SYS_PTRACE" in done.stderr


# On a terminal


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (160, 50)])
def test_plain_draws_what_keys_ask_for_and_leaves_the_terminal_as_it_was(
    program: subprocess.Popen[str], columns: int, rows: int
) -> None:
    seen = viewer(program.pid, "--plain", "--interval", "100ms", columns=columns, rows=rows)
    seen.expect_exact("<-c>:3")
    drawn = CONTROL.sub("", seen.before.rpartition("\x1b[H")[2]).splitlines()
    assert drawn and max(map(len, drawn)) <= columns
    seen.send("s")
    seen.expect_exact("first (<-c>:3)")
    seen.send("m")
    seen.expect(r"growth since \d+\.\d\d s")
    more(program)
    seen.expect(r"\+2\.9 MiB")
    seen.send("q")
    seen.expect(re.escape("\x1b[?1049l"))
    seen.expect(pexpect.EOF)
    seen.close()
    assert seen.exitstatus == 0
    assert program.communicate("enough\n", PATIENCE_SECONDS)[0] == "" and program.returncode == 7


def test_a_viewer_that_is_killed_harms_neither_the_other_viewer_nor_the_program(
    program: subprocess.Popen[str],
) -> None:
    first, second = (viewer(program.pid, "--plain", "--interval", "100ms") for _ in range(2))
    for seen in (first, second):
        seen.expect_exact("<-c>:3")
    first.kill(signal.SIGKILL)
    more(program)
    second.expect_exact("<-c>:4")
    again = viewer(program.pid, "--plain")
    again.expect_exact("<-c>:4")
    program.kill()
    second.expect("was killed")
    assert second.isalive()
    for seen in (second, again):
        seen.send("q")
        seen.expect(pexpect.EOF)
        seen.close()
        assert seen.exitstatus == 0
    first.close()


def test_without_textual_the_plain_view_is_drawn_and_one_line_says_so(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "textual.py").write_text("raise ImportError('not installed')")
    seen = viewer(program.pid, path=str(tmp_path / "path"))
    seen.expect(r"Textual is not installed \(pip install 'hiwater\[live\]'\)")
    seen.expect_exact("<-c>:3")
    seen.sendintr()
    seen.expect(pexpect.EOF)
    seen.close()
    assert seen.exitstatus == 0


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_textual_shows_the_same_and_the_end_of_the_process(
    program: subprocess.Popen[str], size: tuple[int, int]
) -> None:
    pytest.importorskip("textual")
    from textual.widgets import Static

    from hiwater.cli.live_screen import LiveScreen

    async def view(run: LiveRun) -> None:
        run.read()
        app = LiveScreen(Viewer(run, View.lines, 0.05))

        def shown(part: str) -> str:
            return str(app.query_one(part, Static).render())

        async def wait(text: str, part: str) -> None:
            until = time.monotonic() + PATIENCE_SECONDS
            while text not in shown(part):
                assert time.monotonic() < until, shown(part)
                await pilot.pause(0.05)

        async with app.run_test(size=size) as pilot:
            await wait("<-c>:3", "#rows")
            await pilot.press("s")
            await wait("first (<-c>:3)", "#rows")
            await pilot.press("m")
            await wait("growth since", "#figures")
            more(program)
            await wait("+2.9 MiB", "#rows")
            program.kill()
            await wait("was killed", "#figures")
            await pilot.press("g", "l")
            await wait("4.8 MiB", "#rows")
            await pilot.press("q")
        assert app.return_code == 0

    run = open_run(str(program.pid))
    asyncio.run(view(run))
    run.close()


def test_textual_on_a_real_terminal_leaves_with_a_key(program: subprocess.Popen[str]) -> None:
    pytest.importorskip("textual")
    seen = viewer(program.pid)
    seen.expect_exact("<-c>")
    seen.send("q")
    seen.expect(pexpect.EOF)
    seen.close()
    assert seen.exitstatus == 0
    wait_until(lambda: program.poll() is None)
