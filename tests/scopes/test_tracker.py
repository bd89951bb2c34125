"""track() and ResourceTracker: what a user types, and the faults of the published class, each shown right here."""

import asyncio
import ctypes
import inspect
import io
import json
import logging
import mmap
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from contextlib import AsyncExitStack, ExitStack

import pytest

import hiwater
import hiwater.compat
from children import run_python
from hiwater.errors import HiwaterError, MeterUnavailable
from hiwater.scopes.tracker import Tracker
from recording import needs_engine
from waiting import wait_until

# glibc raises this by itself when a large block is freed, and then keeps memory that it gave back before: peaks would
# depend on what ran earlier.
ctypes.CDLL(None).mallopt(-3, 128 * 1024)  # M_MMAP_THRESHOLD
MIB = 2**20
TEMPORARY = 30_000_000  # of a list: 229 MiB
OWN = 64 * 1024


def exact():
    with hiwater.track(meters=("resident",)) as t:
        pass
    return t.usage.resident.exact


needs_mark = pytest.mark.skipif(not exact(), reason="the high-water mark cannot be reset here")


def resident():
    """What is resident, in bytes, by a walk of the page tables: what anybody gives back between two figures is in
    neither."""
    with open("/proc/self/smaps_rollup", "rb", buffering=0) as rollup:  # a buffer has 128 KiB from 3.14 on
        return next(int(line.split()[1]) << 10 for line in rollup if line.startswith(b"Rss:"))


def hold(mib):
    """Hold `mib` MiB for a moment, inside one call; what was resident then, in bytes."""
    held = [0] * (mib * MIB // 8)
    return resident() if held else 0


def has_peak(level, *held):
    """Whether the level's peak is the largest of what was resident while something was held."""
    return abs(level.peak_bytes - max(held)) < MIB


@needs_mark
@needs_engine
def test_the_peak_of_a_temporary_inside_one_call():
    with hiwater.track("load") as t:
        len([0] * TEMPORARY)
    usage = t.usage
    assert abs(usage.resident.peak_above_start_bytes - TEMPORARY * 8) < MIB
    assert abs(usage.heap.peak_above_start_bytes - TEMPORARY * 8) < OWN
    assert abs(usage.python.peak_above_start_bytes - TEMPORARY * 8) < OWN
    assert usage.heap.kept_bytes < OWN
    assert abs(usage.heap.transient_bytes - TEMPORARY * 8) < OWN
    assert threading.active_count() <= 2  # ours only lingers; nothing samples


@needs_mark
@needs_engine
def test_nested_scopes_each_have_their_own_peak():
    with hiwater.track("outer") as outer:
        most = hold(200)
        with hiwater.track("middle") as middle:
            more = hold(50)
            with hiwater.track("inner") as inner:
                least = hold(10)
    for run, mib, held in ((outer, 200, most), (middle, 50, more), (inner, 10, least)):
        assert has_peak(run.usage.resident, held), run
        assert abs(run.usage.heap.peak_above_start_bytes - mib * MIB) < OWN, run


@needs_mark
@needs_engine
def test_overlapping_scopes():
    first, second = hiwater.track("first"), hiwater.track("second")
    first.start()
    hold(100)
    second.start()
    held = hold(150)
    first.stop()
    hold(50)
    second.stop()
    for tracker in (first, second):
        assert has_peak(tracker.usage.resident, held)
    third, fourth = hiwater.track("third"), hiwater.track("fourth")
    third.start()
    held_before = hold(100)
    fourth.start()
    third.stop()
    held_after = hold(150)
    fourth.stop()
    for tracker, mib, held in ((third, 100, held_before), (fourth, 150, held_after)):
        assert has_peak(tracker.usage.resident, held)
        assert abs(tracker.usage.heap.peak_above_start_bytes - mib * MIB) < OWN


@needs_mark
@needs_engine
def test_four_threads_each_close_their_own_run():
    tracker = hiwater.track("work")
    turns = [threading.Event() for _ in range(5)]
    peaks = {}

    def work(index, mib):
        turns[index].wait(20)
        with tracker as run:
            held = hold(mib)
        peaks[mib] = run.usage, held
        turns[index + 1].set()

    threads = [threading.Thread(target=work, args=(i, mib)) for i, mib in enumerate((40, 10, 80, 20))]
    for thread in threads:
        thread.start()
    with hiwater.track("all") as everything:
        turns[0].set()
        turns[4].wait(20)
    for thread in threads:
        thread.join()
    for mib, (usage, held) in peaks.items():
        assert has_peak(usage.resident, held)
        assert abs(usage.heap.peak_above_start_bytes - mib * MIB) < OWN
    assert abs(everything.usage.heap.peak_above_start_bytes - 80 * MIB) < OWN
    assert tracker.calls == 4


def test_four_threads_at_once_lose_nothing():
    tracker = hiwater.track("work", meters=("resident",))

    def work():
        for _ in range(200):
            with tracker, tracker:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.calls == 1600
    assert not tracker._open


@needs_mark
@needs_engine
def test_tasks_share_a_tracker_and_each_keeps_its_run():
    tracker = hiwater.track("task")

    async def task(name, mib, steps):
        async with tracker as run:
            hold(mib)
            for _ in range(steps):
                await asyncio.sleep(0)
        return name, run.usage

    async def main():
        return dict(await asyncio.gather(task("a", 60, 3), task("b", 20, 1), task("c", 10, 5)))

    usages = asyncio.run(main())
    # All three began before any ended: a's 60 MiB came before b began, so b did not see them.
    for name, mib in (("a", 60), ("b", 20), ("c", 10)):
        assert abs(usages[name].heap.peak_above_start_bytes - mib * MIB) < OWN, name


def test_exit_stacks_in_tasks_end_their_own_run():
    tracker = hiwater.track("task", meters=("resident",))

    async def task(steps):
        async with AsyncExitStack() as stack:
            run = await stack.enter_async_context(tracker)
            for _ in range(steps):
                await asyncio.sleep(0)
        assert not run.scope.is_open
        return run

    async def main():
        return await asyncio.gather(*(task(steps) for steps in (4, 1, 3, 2)))

    assert len({id(run) for run in asyncio.run(main())}) == 4


def test_generators_that_take_turns_end_their_own_run():
    tracker = hiwater.track("turns", meters=("resident",))

    def numbers():
        with tracker as run:
            yield run
            yield run

    one, two = numbers(), numbers()
    first, second = next(one), next(two)
    one.close()
    assert not first.scope.is_open and second.scope.is_open
    two.close()
    assert not second.scope.is_open


def test_recursion_and_reuse():
    @hiwater.track("down", meters=("resident",))
    def down(depth):
        return 0 if depth == 0 else 1 + down(depth - 1)

    assert down(20) == 20
    assert down.tracker.calls == 21
    down(0)
    assert down.tracker.calls == 22
    assert "22 runs" in str(down.tracker)


def test_a_decorated_function_stays_what_it_was():
    @hiwater.track
    def plain(a, *, b=2):
        """Say something."""
        return a, b

    assert plain(1, b=3) == (1, 3)
    assert (plain.__name__, plain.__doc__) == ("plain", "Say something.")
    assert "plain" in plain.tracker.usage.name


@needs_mark
def test_a_decorated_coroutine_is_measured_to_its_end():
    @hiwater.track(meters=("resident",))
    async def work():
        held = hold(30)
        await asyncio.sleep(0.05)
        return held

    assert inspect.iscoroutinefunction(work)
    held = asyncio.run(work())
    assert work.tracker.usage.wall_seconds > 0.04
    assert has_peak(work.tracker.usage.resident, held)


@needs_mark
def test_a_decorated_generator_passes_everything_through():
    @hiwater.track(meters=("resident",))
    def talk():
        heard = []
        try:
            heard.append((yield 1))
            held.append(hold(30))
            yield 2
        except KeyError:
            heard.append("thrown")
            yield 3
        return heard

    def outer():
        heard.extend((yield from talk()))

    heard, held = [], []
    generator = outer()
    assert next(generator) == 1
    assert generator.send("sent") == 2
    assert generator.throw(KeyError()) == 3
    assert list(generator) == []
    assert heard == ["sent", "thrown"]
    assert has_peak(talk.tracker.usage.resident, *held)


def test_a_decorated_async_generator_passes_everything_through():
    events = []

    @hiwater.track(meters=("resident",))
    async def talk():
        try:
            events.append((yield 1))
            yield 2
        except KeyError:
            yield 3
        finally:
            events.append("closed")

    async def main():
        stream = talk()
        assert await anext(stream) == 1
        assert await stream.asend("sent") == 2
        assert await stream.athrow(KeyError()) == 3
        await stream.aclose()
        assert [item async for item in talk()] == [1, 2]
        early = talk()
        await anext(early)
        await early.aclose()

    asyncio.run(main())
    assert events == ["sent", "closed", None, "closed", "closed"]
    assert talk.tracker.calls == 3


def test_an_exception_leaves_the_result_and_keeps_no_frame():
    tracker = hiwater.track("fails", meters=("resident",))
    with pytest.raises(ZeroDivisionError), tracker:
        1 / 0  # noqa: B018
    assert tracker.usage.error == "ZeroDivisionError"
    assert "ended by ZeroDivisionError" in str(tracker)
    assert tracker.usage.complete
    with ExitStack() as stack, pytest.raises(MeterUnavailable):
        stack.enter_context(hiwater.track(meters=("resident", "no such meter")))


def test_usage_may_be_asked_while_the_block_runs():
    with hiwater.track(meters=("resident",)) as t:
        early = t.usage
    assert not early.complete
    assert t.usage.complete
    assert early.wall_seconds < t.usage.wall_seconds


def test_what_was_not_measured_says_why():
    with hiwater.track(meters=("resident",)) as t:
        pass
    with pytest.raises(HiwaterError, match="did not measure it"):
        _ = t.usage.heap
    with pytest.raises(AttributeError, match="resident"):
        _ = t.usage.nonsense
    with pytest.raises(MeterUnavailable, match="nothing has been measured"):
        _ = hiwater.track().usage


def test_more_meters_by_name():
    with hiwater.track(meters=("resident", "pss", "uss", "swap", "tree")) as t:
        pass
    assert 0 < t.usage.uss.end_bytes <= t.usage.pss.end_bytes
    assert not t.usage.pss.exact and "between" in t.usage.pss.reason
    assert t.usage.tree.whose == "process tree"


def test_every_form_of_the_result_says_the_same():
    with hiwater.track("forms <b>", meters=("resident",)) as t:
        pass
    told = json.loads(t.to_json())
    assert told == t.to_dict() == json.loads(json.dumps(t.usage.to_dict()))
    assert told["levels"]["resident"]["peak_bytes"] == t.usage.resident.peak_bytes
    assert "forms <b>" in str(t)
    assert "<b>forms &lt;b&gt;" in t._repr_html_()
    assert {"cpu_user_seconds", "io_read_bytes", "page_faults", "voluntary_switches"} <= set(told)
    assert t.usage.io_read_bytes is None or t.usage.io_read_bytes >= 0


def test_time_is_monotonic_and_cpu_is_told_apart():
    begun = time.monotonic()
    with hiwater.track(meters=("resident",)) as t:
        time.sleep(0.05)
    assert 0.045 < t.usage.wall_seconds < time.monotonic() - begun
    assert t.usage.cpu_seconds < t.usage.wall_seconds


def test_own_cost_is_in_the_result():
    with hiwater.track(meters=("resident",)) as outer:
        for _ in range(50):
            with hiwater.track(meters=("resident",)):
                pass
    assert 0 < outer.usage.overhead_seconds < outer.usage.wall_seconds + 0.1


def test_a_log_of_a_killed_program_has_its_figures(tmp_path):
    log = tmp_path / "run.jsonl"
    program = f"""
        import hiwater, time
        with hiwater.track("doomed", meters=("resident",), log={str(log)!r}):
            kept = bytearray(b"x") * (64 << 20)
            kept = None
            while True: time.sleep(0.01)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    wait_until(lambda: log.exists() and '"sample"' in log.read_text())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines[:2]] == ["begin", "sample"]
    resident = lines[-1]["levels"]["resident"]
    assert resident["peak_above_start_bytes"] > 60 * MIB
    assert lines[-1]["pid"] == process.pid


def test_logs_to_a_stream_a_logger_and_nowhere(tmp_path, caplog):
    stream = io.StringIO()
    with hiwater.track("x", meters=("resident",), log=stream):
        pass
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["begin", "end"]
    with caplog.at_level(logging.INFO), hiwater.track("y", meters=("resident",), log=logging.getLogger("t")):
        pass
    assert "peak above start" in caplog.text
    with pytest.raises(HiwaterError, match="cannot be written"), hiwater.track(log=tmp_path / "no" / "folder"):
        pass
    closed = io.StringIO()
    with hiwater.track("z", meters=("resident",), log=closed):
        closed.close()  # the program is not made to suffer


# --- ResourceTracker: the faults of the published class, by their number in its review --------------------------------


@needs_mark
def test_1_and_2_it_can_be_used_again_nested_and_several_at_once():
    tracker = hiwater.compat.ResourceTracker(None, monitoring_interval=0.01)
    for _ in range(2):
        with tracker:
            hold(20)
    with tracker, hiwater.compat.ResourceTracker(print if False else None, 0.01) as inner:
        held = hold(40)
    assert tracker.calls == 3
    for each in (tracker, inner):
        assert has_peak(each.usage.resident, held)


@needs_mark
def test_3_and_4_short_peaks_and_the_baseline_need_no_sleep():
    with hiwater.compat.ResourceTracker(monitoring_interval=10) as tracker:
        kept = [0] * TEMPORARY
    assert abs(tracker.get_peak_memory_usage() - 228.9) < 1
    assert abs(tracker.usage.resident.kept_bytes - len(kept) * 8) < MIB


def test_5_leaving_does_not_wait_for_an_interval():
    start = time.monotonic()
    with hiwater.compat.ResourceTracker(monitoring_interval=60):
        pass
    assert time.monotonic() - start < 30


def test_6_tracing_of_the_users_own_goes_on():
    tracemalloc.start()
    try:
        with hiwater.compat.ResourceTracker():
            pass
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_6_tracing_is_not_started():
    with hiwater.compat.ResourceTracker():
        assert not tracemalloc.is_tracing()


def test_7_no_framework_is_imported_for_it():
    program = (
        "import sys, hiwater.compat\nwith hiwater.compat.ResourceTracker(): pass\n"
        "print(sorted({'torch','numpy','rich'} & set(sys.modules)))"
    )
    assert run_python("-c", program, check=True).stdout.strip() == "[]"


@needs_engine
def test_8_reuse_of_memory_inside_the_heap_is_seen():
    blocks = [bytes(600) for _ in range(50_000)]
    blocks.clear()  # the allocator keeps some of it; resident memory may not move below
    with hiwater.compat.ResourceTracker() as tracker:
        again = [bytes(600) for _ in range(50_000)]
    assert tracker.usage.heap.kept_bytes > 30_000_000
    assert len(again) == 50_000


def test_9_and_11_a_logger_is_optional_and_units_are_right():
    lines = []
    with hiwater.compat.ResourceTracker(lines.append) as tracker:
        hold(40)  # more than malloc ever keeps of freed memory to use again
    assert any("Peak System RAM Usage (Incremental)" in line and "MiB" in line for line in lines)
    assert lines[0].startswith("Execution time: ")
    assert tracker.get_peak_memory_usage() > 5
    assert tracker.to_dict()["levels"]


@needs_engine
def test_12_allocated_and_resident_side_by_side():
    numpy = pytest.importorskip("numpy")
    with hiwater.compat.ResourceTracker() as tracker:
        array = numpy.zeros((10_000_000, 1)).astype("float64")
    usage = tracker.usage
    assert abs(usage.heap.peak_above_start_bytes - 160_000_000) < OWN
    assert abs(usage.resident.peak_above_start_bytes - array.nbytes) < 2 * MIB


def test_14_every_figure_says_where_it_comes_from():
    with hiwater.compat.ResourceTracker() as tracker:
        pass
    for level in tracker.usage.levels.values():
        assert level.source and level.whose
        assert level.exact or level.reason


def test_16_a_timeline_is_sampled_and_stays_bounded(monkeypatch):
    monkeypatch.setattr("hiwater.scopes.logs.MOST_SAMPLES", 10)
    seen = set()
    with hiwater.compat.ResourceTracker(monitoring_interval=0.001) as tracker:
        wait_until(lambda: seen.update(tracker.timeline) or len(seen) > 11)  # more than are kept
    samples = tracker.timeline
    assert 3 <= len(samples) <= 11
    assert [moment for moment, _ in samples] == sorted(moment for moment, _ in samples)
    assert all(size > MIB for _, size in samples)


# --- ResourceTracker and MemoryMonitor: what the article shows, line by line ------------------------------------------

PUBLISHED_LINES = (
    ("Execution time", "seconds"),
    ("Peak Python Allocated Memory", "MiB"),
    ("Peak CUDA GPU Memory Usage (Incremental)", "MiB"),
    ("Peak System RAM Usage (Incremental)", "MiB"),
)


@needs_engine
@needs_mark
def test_the_log_has_the_published_lines_in_their_order(caplog):
    logger = logging.getLogger("published")
    with caplog.at_level(logging.INFO), hiwater.compat.ResourceTracker(logger, monitoring_interval=0.001):
        kept = [0.0] * 5_000_000
    found = [re.fullmatch(r"([^:]+): ([\d.]+) (seconds|MiB)(?:,? .*)?", line) for line in caplog.messages]
    assert all(found), caplog.messages
    assert tuple((line[1], line[3]) for line in found) == PUBLISHED_LINES
    _, python, cuda, ram = (float(line[2]) for line in found)
    assert (python, ram) == pytest.approx((38.15, 38.15), abs=1)
    assert cuda == 0 and len(kept) == 5_000_000


@needs_engine
def test_the_python_line_counts_numpys_arrays_as_the_article_does():
    numpy = pytest.importorskip("numpy")
    lines = []
    with hiwater.compat.ResourceTracker(lines.append):
        array = numpy.zeros((5_000_000, 1)).astype("float64")
    assert re.match(r"Peak Python Allocated Memory: 76\.[23]\d MiB", lines[1]), lines
    assert array.nbytes == 40_000_000


def test_lines_of_what_was_not_measured_say_so():
    lines = []
    with hiwater.compat.ResourceTracker(lines.append, meters=("resident",)):
        pass
    assert [line.partition(":")[0] for line in lines] == ["Execution time", "Peak System RAM Usage (Incremental)"]


def test_a_tracker_that_has_not_run_can_be_shown():
    for tracker in (hiwater.compat.ResourceTracker(print), hiwater.track()):
        assert "nothing has been measured yet" in str(tracker)
        assert "nothing has been measured yet" in tracker._repr_html_()
        assert "0 runs" in repr(tracker)
    assert hiwater.compat.ResourceTracker().get_peak_gpu_memory_usage() == 0
    assert hiwater.compat.ResourceTracker().timeline == []


@pytest.mark.parametrize("interval", [0, -1, 0.0, "abc", "0.1", b"1", float("nan"), float("inf"), [], 10**400])
def test_an_interval_that_is_none_is_refused_at_once(interval):
    for make in (
        lambda: hiwater.compat.ResourceTracker(print, interval),
        lambda: hiwater.compat.MemoryMonitor(interval),
        lambda: hiwater.track(interval=interval),
        lambda: hiwater.compat.memory_usage(interval=interval),
    ):
        with pytest.raises(ValueError, match="not a number of seconds above 0") as refused:
            make()
        assert isinstance(refused.value, HiwaterError)


def test_the_times_of_a_run():
    tracker = hiwater.compat.ResourceTracker(monitoring_interval=0.001)
    assert tracker.start_time is None and tracker.end_time is None
    before, begun = time.time(), time.monotonic()
    with tracker as entered:
        assert entered is tracker and before <= tracker.start_time <= time.time()
    assert tracker.start_time <= tracker.end_time <= time.time()
    elapsed = tracker.end_time - tracker.start_time
    around = time.monotonic() - begun
    assert elapsed == pytest.approx(tracker.usage.wall_seconds, abs=around)


@needs_mark
def test_the_trackers_monitor_has_the_figures_of_its_run():
    tracker = hiwater.compat.ResourceTracker(monitoring_interval=0.25)
    monitor = tracker.monitor
    assert isinstance(monitor, hiwater.compat.MemoryMonitor) and monitor.interval == 0.25
    assert (monitor.running, monitor.initial_cpu_memory, monitor.peak_cpu_memory) == (False, None, 0)
    assert monitor.get_peak_memory_usage() == 0
    with tracker:
        assert monitor.running
        monitor.start()  # it runs already
        monitor.stop()  # its block ends it
        assert monitor.running
        hold(20)
    assert not monitor.running
    resident = tracker.usage.resident
    assert (monitor.initial_cpu_memory, monitor.peak_cpu_memory) == (resident.start_bytes, resident.peak_bytes)
    assert monitor.get_peak_memory_usage() == tracker.get_peak_memory_usage()
    assert hiwater.compat.MemoryMonitor.get_peak_memory() >= resident.peak_bytes


@needs_mark
def test_a_monitor_by_itself_can_be_started_again():
    monitor = hiwater.compat.MemoryMonitor(interval=0.05, logger=None)
    assert monitor.logger is print
    monitor.stop()  # was not started
    for mib in (30, 60):
        monitor.start()
        monitor.start()
        held = hold(mib)
        monitor.stop()
        assert abs(monitor.peak_cpu_memory - held) < MIB
    assert monitor.get_peak_memory_usage() == pytest.approx(60, abs=12)
    assert hiwater.compat.MemoryMonitor.get_peak_memory() >= monitor.peak_cpu_memory


def test_readings_of_a_monitor_that_was_not_started():
    monitor = hiwater.compat.MemoryMonitor()
    monitor.monitor_memory()
    first = monitor.initial_cpu_memory
    # A mapping of its own: malloc may serve a block of any size from pages that earlier tests left resident in its
    # heap.
    with mmap.mmap(-1, 20 * MIB) as held:
        held[:: mmap.PAGESIZE] = b"x" * (len(held) // mmap.PAGESIZE)
        monitor.monitor_memory()
    assert monitor.initial_cpu_memory == first
    assert monitor.get_peak_memory_usage() == pytest.approx(20, abs=1)


@needs_mark
def test_a_scope_that_lives_through_a_fork():
    # In a process that has little else: a child begins without the pages of files that its parent had touched.
    code = f"""
import os
import hiwater
def hold(mib):
    len([0] * (mib * {MIB} // 8))
with hiwater.track(meters=("resident",)) as t:
    hold(30)
    pid = os.fork()
    if pid == 0:
        hold(120)
        os._exit(0 if t.usage.resident.peak_above_start_bytes > 55 * {MIB} else 1)
    assert os.waitpid(pid, 0)[1] == 0
assert abs(t.usage.resident.peak_above_start_bytes - 30 * {MIB}) < {MIB}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_engine
@needs_mark
def test_a_recording_in_progress_keeps_its_resident_peak(tmp_path):
    with hiwater.record(tmp_path / "run.hiw") as recorder:
        hold(120)
        for _ in range(3):
            with hiwater.track():
                hold(20)
    start = recorder.summary()["program_peak_bytes"]
    assert start > 120 * MIB


@needs_engine
@needs_mark
def test_a_recording_that_begins_inside_a_scope_does_not_rob_it(tmp_path):
    with hiwater.track() as t:
        hold(120)
        with hiwater.record(tmp_path / "run.hiw"):
            hold(20)
    assert t.usage.resident.peak_above_start_bytes > 119 * MIB
    assert t.usage.heap.peak_above_start_bytes > 119 * MIB


SIZES = [(120, 30, 60), (30, 120, 60), (30, 60, 120), (0, 40, 0)]  # MiB before, inside and after the inner block


def peak_of(call, *arguments):
    """What memory_usage() says was resident at the call's peak, in bytes, and what the call returned."""
    peak, returned = hiwater.compat.memory_usage((call, arguments), max_usage=True, retval=True)
    return peak * MIB, returned


@needs_mark
@pytest.mark.parametrize(("before", "inside", "after"), SIZES)
def test_a_call_that_is_sampled_inside_a_scope(before, inside, after):
    with hiwater.track(meters=("resident",)) as outer:
        held_before = hold(before)
        peak, held_inside = peak_of(hold, inside)
        held_after = hold(after)
    assert abs(peak - held_inside) < MIB
    assert has_peak(outer.usage.resident, held_before, held_inside, held_after)
    assert outer.usage.resident.exact


@needs_mark
@pytest.mark.parametrize(("before", "inside", "after"), SIZES)
def test_a_scope_inside_a_call_that_is_sampled(before, inside, after):
    def work():
        held_before = hold(before)
        with hiwater.track(meters=("resident",)) as inner:
            held_inside = hold(inside)
        assert inner.usage.resident.exact
        assert has_peak(inner.usage.resident, held_inside)
        return max(held_before, held_inside, hold(after))

    peak, held = peak_of(work)
    assert abs(peak - held) < MIB


@needs_mark
def test_calls_that_are_sampled_nest_and_leave_no_scope_open():
    from hiwater.scopes.manager import SCOPE_MANAGER

    def work():
        held = hold(80)
        peak, held_inside = peak_of(hold, 20)
        with pytest.raises(ZeroDivisionError):
            hiwater.compat.memory_usage(lambda: 1 / 0)
        assert abs(peak - held_inside) < MIB
        return held

    peak, held = peak_of(work)
    assert abs(peak - held) < MIB
    assert SCOPE_MANAGER.open_scopes == 0


@needs_engine
@needs_mark
def test_a_call_that_is_sampled_in_a_recording_is_exact_and_so_is_the_recording(tmp_path):
    with hiwater.record(tmp_path / "run.hiw") as recorder:
        hold(120)
        peak, held = peak_of(hold, 20)
    assert abs(peak - held) < MIB
    assert recorder.summary()["program_peak_bytes"] > 120 * MIB


def test_a_tracker_is_a_tracker():
    assert isinstance(hiwater.compat.ResourceTracker(), Tracker)
    assert repr(hiwater.track("x")) == "<hiwater.Tracker 'x', 0 runs, 0 open>"
