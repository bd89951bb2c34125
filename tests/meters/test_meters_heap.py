"""The engine's meters: exact to the byte but for what a scope itself allocates."""

import functools
import os
import threading
import warnings

import pytest

import hiwater
from hiwater.meters.heap import COUNTING, Heap, PythonObjects
from recording import needs_engine
from waiting import wait_until

pytestmark = needs_engine
MIB = 2**20
OWN = 4096  # what two readings themselves may hold


@pytest.fixture
def heap():
    meter = Heap()
    meter.open()
    yield meter
    meter.close()


def test_a_temporary_is_in_the_peak_to_the_byte(heap):
    start, _, _ = heap.read_and_reset()
    len([0] * 30_000_000)
    now, peak, intact = heap.read_and_reset()
    assert intact
    assert abs(peak - start - 240_000_000) < OWN
    assert abs(now - start) < OWN


def test_two_meters_of_one_mark_do_not_rob_each_other(heap):
    python = PythonObjects()
    python.open()
    heap.read_and_reset(), python.read_and_reset()
    len([0] * 1_000_000)
    assert heap.read_and_reset()[1] > 8_000_000
    assert python.read_and_reset()[1] > 8_000_000
    python.close()


def test_memory_that_is_asked_for_and_not_touched_is_in_the_heap(heap):
    numpy = pytest.importorskip("numpy")
    start, _, _ = heap.read_and_reset()
    zeros = numpy.zeros(10_000_000)
    assert abs(heap.read_and_reset()[0] - start - zeros.nbytes) < OWN


def test_counting_lingers_and_then_ends():
    meter = Heap()
    meter.open()
    meter.close()
    assert COUNTING._counting_in == os.getpid()
    wait_until(lambda: COUNTING._counting_in == 0)


def test_a_fork_is_not_warned_of_our_thread():
    meter = Heap()
    meter.open()
    meter.close()
    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pid = os.fork()
        if pid == 0:
            os._exit(0 if threading.active_count() == 1 or threads > 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_can_count(heap):
    pid = os.fork()
    if pid == 0:
        start = heap.read_and_reset()[0]
        held = bytearray(MIB)
        os._exit(0 if heap.read_and_reset()[0] - start >= MIB and held is not None else 1)
    assert os.waitpid(pid, 0)[1] == 0


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_each_thread_has_its_own_share_to_the_byte():
    together, found = threading.Barrier(3), {}

    def work(size):
        with hiwater.track(str(size), meters=("heap", "thread")) as t:
            together.wait()
            kept = bytearray(size)
            passing = bytearray(2 * size)
            del passing
            together.wait()
        found[size] = t.usage
        del kept

    in_threads(*(functools.partial(work, size) for size in (10 * MIB, 20 * MIB, 30 * MIB)))
    for size, usage in found.items():
        assert abs(usage.thread.kept_bytes - size) < 4096
        assert abs(usage.thread.peak_bytes - 3 * size) < 4096
        assert (usage.thread.start_bytes, usage.thread.exact, usage.thread.whose) == (0, True, "thread")
        assert usage.heap.peak_above_start_bytes > 59 * MIB


def test_a_thread_that_frees_what_another_made_goes_below_zero():
    handed = [None]

    def free():
        with hiwater.track(meters=("thread",)) as t:
            handed.clear()
        found.append(t.usage.thread)

    found = []
    with hiwater.track(meters=("thread",)) as here:
        handed[0] = bytearray(5 * MIB)
        in_threads(free)
    assert abs(found[0].kept_bytes + 5 * MIB) < 4096
    assert abs(here.usage.thread.kept_bytes - 5 * MIB) < 64 * 1024  # this thread made it, and never freed it


def test_nested_scopes_of_one_thread_fold_their_shares():
    with hiwater.track(meters=("thread",)) as outer:
        bytearray(6 * MIB)
        with hiwater.track(meters=("thread",)) as inner:
            bytearray(2 * MIB)
        assert outer.usage.thread.peak_bytes >= 6 * MIB
    assert abs(inner.usage.thread.peak_bytes - 2 * MIB) < 4096
    assert abs(outer.usage.thread.peak_bytes - 6 * MIB) < 16 * 1024


def test_a_thread_of_its_own_figure_that_is_asked_elsewhere_says_so():
    tracker = hiwater.track("elsewhere", meters=("heap", "thread"))
    run = tracker.start()
    seen = []
    in_threads(lambda: seen.append(run.usage))
    assert "another thread" in seen[0].unmeasured["thread"]
    assert run.usage.thread.start_bytes == 0  # here it is known all the same
    in_threads(tracker.stop)
    assert "another thread" in run.usage.unmeasured["thread"] and run.usage.heap.exact


def test_threads_that_come_and_go_leave_nothing():
    def measure():
        with hiwater.track(meters=("thread",)):
            pass

    for _ in range(200):
        in_threads(measure)
    from hiwater.scopes.manager import SCOPE_MANAGER

    with hiwater.track(meters=("thread",)) as t:
        pass
    assert t.usage.thread.kept_bytes < 4096
    assert len([slot for slot in SCOPE_MANAGER._slots.values() if slot.thread and not slot.users]) <= 64


def test_the_table_leaves_out_a_thread_that_says_what_the_heap_says():
    with hiwater.track("alone") as alone:
        kept = bytearray(MIB)
    assert "thread" in alone.usage.levels and "\nthread " not in str(alone)
    kept_elsewhere = []
    with hiwater.track("shared") as shared:
        in_threads(lambda: kept_elsewhere.append(bytearray(9 * MIB)))
    assert "\nthread " in str(shared)
    assert kept


@pytest.mark.parametrize("seed", range(5))
def test_totals_are_those_of_every_request_whoever_made_it(heap, seed):
    import ctypes
    import random

    libc = ctypes.CDLL(None)
    for name in ("malloc", "realloc"):
        getattr(libc, name).restype = ctypes.c_void_p
    malloc, realloc, free = libc.malloc, libc.realloc, libc.free
    draws = random.Random(seed)
    plan = [(draws.choice("mmrf"), draws.randrange(50_000, 300_000)) for _ in range(200)]

    def requests():
        live, asked, count = [], 0, 0
        for what, size in plan:
            if what == "m" or not live:
                live.append(malloc(ctypes.c_size_t(size)))
            elif what == "r":
                live.append(realloc(ctypes.c_void_p(live.pop(0)), ctypes.c_size_t(size)))
            else:
                free(ctypes.c_void_p(live.pop()))
                continue
            asked, count = asked + size, count + 1
        for block in live:
            free(ctypes.c_void_p(block))
        return asked, count

    asked, count = requests()  # ctypes has made its caches
    before = COUNTING.totals()
    assert requests() == (asked, count)
    after = COUNTING.totals()
    thread = threading.Thread(target=requests)
    thread.start()
    thread.join()
    both = COUNTING.totals()
    python = 400 * 1000  # objects of the loop above, at most 1000 bytes and 20 of them for each request
    for counted in (after[0] - before[0], after[2] - before[2], both[0] - after[0]):
        assert asked <= counted < asked + python
    for counted in (after[1] - before[1], after[3] - before[3], both[1] - after[1]):
        assert count <= counted < count + 400 * 20
    assert both[2] - after[2] < python  # what the other thread requested is not this one's


def test_a_request_that_is_refused_is_in_no_total(heap):
    import ctypes

    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(100_000)))
    before = COUNTING.totals()
    assert libc.realloc(block, ctypes.c_size_t(1 << 60)) is None
    after = COUNTING.totals()
    libc.free(block)
    assert after[0] - before[0] < 50_000
    assert after[2] - before[2] < 50_000


def test_a_scope_has_what_was_allocated_in_it():
    with hiwater.track("x", meters=("heap", "python", "thread")) as run:
        for _ in range(100):
            bytearray(100_000)
    usage = run.usage
    for level in (usage.heap, usage.thread):
        assert 10_000_000 <= level.allocated_bytes < 10_100_000
        assert 100 <= level.allocations < 1_000
    assert usage.python.allocated_bytes is None
    assert usage.to_dict()["levels"]["heap"]["allocations"] == usage.heap.allocations
