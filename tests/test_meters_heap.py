"""The engine's meters: exact to the byte but for what a scope itself allocates."""

import os
import threading
import time
import warnings

import pytest

from hiwater.meters.heap import COUNTING, Heap, PythonObjects
from recording import needs_engine

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
    start, _, _ = heap.fold()
    len([0] * 30_000_000)
    now, peak, intact = heap.fold()
    assert intact
    assert abs(peak - start - 240_000_000) < OWN
    assert abs(now - start) < OWN


def test_two_meters_of_one_mark_do_not_rob_each_other(heap):
    python = PythonObjects()
    python.open()
    heap.fold(), python.fold()
    len([0] * 1_000_000)
    assert heap.fold()[1] > 8_000_000
    assert python.fold()[1] > 8_000_000
    python.close()


def test_memory_that_is_asked_for_and_not_touched_is_in_the_heap(heap):
    numpy = pytest.importorskip("numpy")
    start, _, _ = heap.fold()
    zeros = numpy.zeros(10_000_000)
    assert abs(heap.fold()[0] - start - zeros.nbytes) < OWN


def test_counting_lingers_and_then_ends():
    meter = Heap()
    meter.open()
    meter.close()
    assert COUNTING._counting_in == os.getpid()
    deadline = time.monotonic() + 5
    while COUNTING._counting_in and time.monotonic() < deadline:
        time.sleep(0.05)
    assert COUNTING._counting_in == 0


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
        start = heap.fold()[0]
        held = bytearray(MIB)
        os._exit(0 if heap.fold()[0] - start >= MIB and held is not None else 1)
    assert os.waitpid(pid, 0)[1] == 0
