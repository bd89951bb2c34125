"""`memory_usage()`: every kind of process and call, and the faults of the function it is named after."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from itertools import pairwise

import pytest

import hiwater
import hiwater.compat
from hiwater._os import procfs
from hiwater._os.durations import parse_duration
from hiwater.errors import BadRequest, ProcessNotReadable, UsageError
from hiwater.sampling import NoSuchProcess, memory_usage
from waiting import wait_until

MIB = 1 << 20
LIST_MIB = 8 * 30_000_000 / MIB  # a list of that many references


def temporary_list() -> int:
    """Holds 229 MiB for a moment, inside one call that keeps the interpreter's lock."""
    return len([0] * 30_000_000)


def test_this_process_is_read_once_and_at_once() -> None:
    start = time.perf_counter()
    used = hiwater.compat.memory_usage(interval=60)
    assert time.perf_counter() - start < 30, "it does not sleep after the last sample"
    assert len(used) == 1 and 5 < used[0] < 2000


def test_a_process_by_number_or_text_for_a_time() -> None:
    assert len(memory_usage(os.getpid(), interval=0.01, timeout=0.05)) == 5
    assert len(memory_usage(str(os.getpid()))) == 1
    stamps = memory_usage(-1, interval=0.01, timeout=0.03, timestamps=True)
    assert abs(stamps[0][1] - time.time()) < 2 and stamps[0][1] < stamps[-1][1]


def test_a_function_is_called_once() -> None:
    calls: list[int] = []
    used, value = memory_usage((calls.append, (1,), {}), retval=True)
    assert (calls, value) == ([1], None) and len(used) >= 1
    memory_usage(lambda: calls.append(2), timeout=0.3)
    assert calls == [1, 2]


def test_a_function_is_called_again_only_when_asked() -> None:
    calls: list[int] = []
    memory_usage(lambda: calls.append(1), interval=10, max_iterations=3)
    assert len(calls) == 3


@pytest.mark.parametrize("interval", [0.1, 0.001])
def test_a_temporary_inside_one_call_is_seen_whole(interval: float) -> None:
    before = memory_usage()[0]
    peak = memory_usage(temporary_list, interval=interval, max_usage=True)
    assert peak - before == pytest.approx(LIST_MIB, abs=2)


def test_what_it_raises_is_raised_and_nobody_is_killed() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with pytest.raises(ZeroDivisionError):
        memory_usage(lambda: 1 / 0)
    assert bystander.poll() is None
    bystander.communicate(b"\n")
    assert bystander.returncode == 0


SAMPLED = """
import os, time
from hiwater.compat import memory_usage

def waits_for_all():
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return "no children"

assert memory_usage(waits_for_all, retval=True)[1] == "no children"
for _ in range(20):  # what starts it is a child while it ends: it must not be counted either
    before = memory_usage()[0]
    alone = memory_usage((time.sleep, (0.001,)), interval=0.01, include_children=True)
    # This process may shrink meanwhile: the allocator gives pages back.
    assert max(alone) < max(before, memory_usage()[0]) + 3
"""


def test_the_sampler_is_nobodys_child() -> None:
    """In a process of its own: other tests may have left children of this one."""
    subprocess.run([sys.executable, "-c", SAMPLED], timeout=300, check=True)


def test_a_popen_until_it_ends_and_its_exit_code_is_left_to_its_owner() -> None:
    code = "x = b'a' * 50_000_000; import time; time.sleep(.5); raise SystemExit(7)"
    process = subprocess.Popen([sys.executable, "-c", code])
    used = memory_usage(process, interval=0.01)
    assert max(used) > 50 and len(used) > 5
    assert process.wait() == 7


def test_children_as_a_sum_and_apart() -> None:
    command = [sys.executable, "-c", "x = b'a' * 40_000_000; import time; time.sleep(.5)"]
    own = memory_usage()[0]
    summed = memory_usage((subprocess.run, (command,)), interval=0.02, include_children=True, max_usage=True)
    assert summed > own + 38
    rows = memory_usage((subprocess.run, (command,)), interval=0.02, multiprocess=True)
    assert any(len(row) == 2 and row[1] > 38 for row in rows)


def test_what_sphinx_gallery_asks_for() -> None:
    for _ in range(5):
        before = memory_usage()[0]
        peak, value = memory_usage(temporary_list, max_usage=True, retval=True, multiprocess=True)
        assert isinstance(peak, float) and value == 30_000_000
        assert peak - before == pytest.approx(LIST_MIB, abs=2), (
            "children being listed, the peak is the kernel's all the same"
        )


def test_a_stream_gets_lines_in_every_mode() -> None:
    out = io.StringIO()
    assert memory_usage((time.sleep, (0.3,)), interval=0.01, stream=out) is None
    lines = out.getvalue().splitlines()
    assert len(lines) >= 3 and all(line.startswith("MEM ") and len(line.split()) == 3 for line in lines)
    out = io.StringIO()
    process = subprocess.Popen(["sh", "-c", "sleep 1 & wait"])
    memory_usage(process, interval=0.01, multiprocess=True, stream=out)
    process.wait()
    assert "CHLD " in out.getvalue()


def test_backends() -> None:
    resident = memory_usage(backend="psutil")[0]
    assert memory_usage(backend="posix")[0] == pytest.approx(resident, abs=2)
    assert 0 < memory_usage(backend="psutil_uss")[0] <= memory_usage(backend="psutil_pss")[0] + 2 <= resident + 4
    with pytest.raises(BadRequest):
        memory_usage(backend="nothing")


def test_tracemalloc_counts_its_own_peak_and_leaves_tracing_as_it_was() -> None:
    assert memory_usage(temporary_list, backend="tracemalloc", max_usage=True) == pytest.approx(LIST_MIB, abs=1)
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    memory_usage(temporary_list, backend="tracemalloc")
    assert tracemalloc.is_tracing()
    tracemalloc.stop()


def test_an_interval_of_a_millisecond_is_kept() -> None:
    """Other work on the machine holds up this sample or that: none comes before its time, and those that nothing
    held up are there."""
    stamps = memory_usage((time.sleep, (1,)), interval=0.001, timestamps=True)
    gaps = [later[1] - earlier[1] for earlier, later in pairwise(stamps)]
    assert len(stamps) <= 1000 * (stamps[-1][1] - stamps[0][1]) + 3
    assert sum(gap == pytest.approx(0.001, abs=0.0003) for gap in gaps) > 50


@pytest.mark.parametrize("wrong", [(len, (), {}, 4), ()])
def test_a_call_has_one_to_three_parts(wrong: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="a call is"):
        memory_usage(wrong)


def test_bad_requests_are_told_clearly() -> None:
    with pytest.raises(NoSuchProcess):
        memory_usage(2**22 + 1)
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NoSuchProcess, match="has ended already"):
        memory_usage(ended.pid)
    ended.wait()
    with pytest.raises(BadRequest):
        memory_usage("python")
    with pytest.raises(BadRequest):
        memory_usage(interval=0)


def test_a_process_that_ends_just_now_has_ended() -> None:
    """It gives its memory back before its state says so, and was taken for a kernel thread."""
    for _ in range(100):
        ending = subprocess.Popen(["true"])
        with pytest.raises(NoSuchProcess):
            all(procfs.open_target(ending.pid).close() is None for _ in itertools.count())
        ending.wait()


@pytest.mark.skipif(procfs.name_of(2) != "kthreadd", reason="kernel threads are not to be seen here")
def test_a_kernel_thread_has_no_memory() -> None:
    with pytest.raises(ProcessNotReadable, match="kernel thread"):
        memory_usage(2)


@pytest.mark.parametrize(("text", "seconds"), [("1ms", 0.001), ("0.1", 0.1), ("5 min", 300), ("250us", 0.00025)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-1s", "nan", "inf", "1 parsec", "ms"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


def test_descendants_are_found_below_children() -> None:
    process = subprocess.Popen(["sh", "-c", "sh -c 'sleep 9; true' & wait"])
    wait_until(lambda: len(procfs.descendants_of(process.pid)) == 2)
    for pid in procfs.descendants_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
