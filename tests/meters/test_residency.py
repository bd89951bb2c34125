"""Where resident memory is: the rows add up, and each finds what was put there."""

import functools
import gc
import importlib.util
import json
import mmap
import os
import subprocess
import sys
import threading

import pytest

import hiwater
from hiwater.errors import MeterUnavailable
from hiwater.meters.residency import breakdown, touched_bytes
from recording import needs_engine
from waiting import FUTEX, is_in_call, wait_until

MIB = 2**20
has_engine = importlib.util.find_spec("hiwater._core") is not None


def rows():
    return {row.name: row for row in breakdown().rows}


def alone(test):
    """Run a test in a process of its own: what other tests have left may be more pages than a breakdown looks at."""

    @functools.wraps(test)
    def run():
        if "HIWATER_TEST_ALONE" in os.environ:
            return test()
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test.__name__}"]
        environment = os.environ | {"HIWATER_TEST_ALONE": "1"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return None

    return run


def grown(name, make):
    gc.collect()  # what earlier tests left is not to be freed meanwhile
    before = rows()[name].resident_bytes
    kept = make()
    after = rows()[name].resident_bytes
    assert kept is not None
    return after - before


@pytest.mark.skipif(has_engine, reason="the engine is there")
def test_without_the_engine_it_says_so():
    for look in (breakdown, lambda: touched_bytes(bytearray(10))):
        with pytest.raises(MeterUnavailable, match="engine"):
            look()


@needs_engine
def test_the_rows_add_up_to_resident_memory():
    found = hiwater.breakdown()
    assert sum(row.resident_bytes for row in found.rows) == found.resident_bytes
    assert abs(found.unexplained_bytes) < 0.15 * found.resident_bytes
    assert all(row.resident_bytes >= 0 for row in found.rows if row.name != "unexplained")


@needs_engine
@alone
def test_small_objects_are_python_objects():
    size = grown("Python objects, live", lambda: [object() for _ in range(1_000_000)])
    assert abs(size - 16 * 1_000_000) < 2 * MIB


@needs_engine
@alone
def test_freed_objects_beside_live_ones_are_slack():
    kept = [(i, str(i)) for i in range(400_000)]
    before = rows()["Python's arenas, slack"].resident_bytes
    del kept[::2]
    assert rows()["Python's arenas, slack"].resident_bytes - before > 10 * MIB
    assert kept


@needs_engine
def test_a_large_block_is_mallocs_and_splits_into_touched_and_not():
    numpy = pytest.importorskip("numpy")
    half = numpy.zeros(100 * MIB, dtype="u1")
    half[: 50 * MIB] = 1
    found = breakdown()
    block = min(found.large, key=lambda block: abs(block.bytes - 100 * MIB))
    assert block.kind == "malloc"
    assert abs(block.bytes - 100 * MIB) <= 8192
    assert abs(block.touched_bytes - 50 * MIB) < 4 * MIB  # a huge page may come whole
    assert found["malloc, live"].untouched_bytes > 45 * MIB
    touched, total = touched_bytes(half)
    assert total == 100 * MIB
    assert abs(touched - 50 * MIB) < 4 * MIB
    assert "never touched" in str(found)


@needs_engine
def test_looking_touches_nothing():
    numpy = pytest.importorskip("numpy")
    zeros = numpy.zeros(64 * MIB, dtype="u1")
    for _ in range(3):
        breakdown()
    assert touched_bytes(zeros)[0] < 4 * MIB


@needs_engine
def test_memory_that_was_only_read_is_nobodys():
    numpy = pytest.importorskip("numpy")
    zeros = numpy.zeros(64 * MIB, dtype="u1")
    assert zeros.sum() == 0
    assert touched_bytes(zeros)[0] < 4 * MIB
    found = breakdown()
    assert abs(found.unexplained_bytes) < 0.15 * found.resident_bytes


@needs_engine
def test_memory_shared_with_a_forked_child_is_still_resident():
    held = bytearray(b"x") * (32 * MIB)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reading, 1)
        os._exit(0)
    touched, total = touched_bytes(held)
    os.write(writing, b"x"), os.waitpid(pid, 0), os.close(reading), os.close(writing)
    assert (touched, total) == (32 * MIB, 32 * MIB)


@needs_engine
def test_mappings_shared_memory_and_stacks():
    def private():
        kept = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        kept.write(b"x" * (32 * MIB))
        return kept

    def shared():
        kept = mmap.mmap(-1, 32 * MIB)
        kept.write(b"x" * (32 * MIB))
        return kept

    assert abs(grown("shared", shared) - 32 * MIB) < MIB
    before = breakdown()
    kept = private()
    after = breakdown()
    grew = sum(after[name].resident_bytes - before[name].resident_bytes for name in ("anonymous maps", "unexplained"))
    assert abs(grew - 32 * MIB) < 2 * MIB
    assert kept
    assert after["files and libraries"].resident_bytes > MIB
    assert after["stacks"].resident_bytes > 0


@needs_engine
def test_the_stack_of_a_waiting_thread_is_a_stack():
    wait, ready = threading.Event(), threading.Event()

    def deep(depth):
        if depth:
            return deep(depth - 1)
        ready.set()
        return wait.wait(60)

    thread = threading.Thread(target=deep, args=(100,))
    thread.start()
    ready.wait(60)
    wait_until(lambda: is_in_call(FUTEX, os.getpid(), thread.native_id))
    with_it = rows()["stacks"].resident_bytes
    wait.set()
    thread.join()
    # It may outlive its join for a moment.
    wait_until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    assert with_it > rows()["stacks"].resident_bytes


@needs_engine
def test_every_form_says_the_same():
    with hiwater.track() as t:
        pass
    found = t.usage.breakdown
    assert found is t.usage.breakdown
    told = json.loads(json.dumps(found.to_dict()))
    assert sum(row["resident_bytes"] for row in told["rows"].values()) == told["resident_bytes"]
    assert "unexplained" in str(found)
    assert "<pre>" in found._repr_html_()


@needs_engine
def test_what_cannot_be_looked_at_says_so():
    with pytest.raises(TypeError):
        touched_bytes(b"read only")
    assert touched_bytes(bytearray()) == (0, 0)
    size = 4 * MIB
    assert touched_bytes(bytearray(b"x") * size) == (size, size)
