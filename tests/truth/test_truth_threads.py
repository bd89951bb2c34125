"""Threads of every origin: nothing is lost between them, and each block hangs under the stack that explains it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recording import Recorded, needs_engine, record

pytestmark = needs_engine


def test_a_hundred_native_threads(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        threads = signatures.load("threads")
        def launch():
            assert threads.allocate_in_threads(100, 100, 1_000) == 0  # @launch
        def main():
            launch()
        """,
        libraries=["threads"],
    )
    stacks = [s for s in recorded.stacks("launch", "native", "end") if s.frames[-1].kind == "native_thread"]
    assert sum(stack.bytes for stack in stacks) == 100 * 100 * 1_000
    assert sum(stack.blocks for stack in stacks) == 100 * 100
    for stack in stacks:
        assert [frame.function for frame in stack.frames[-3:-1]] == ["main", "launch"]


def test_a_thread_that_a_native_thread_started(tmp_path: Path) -> None:
    """It still hangs under the Python stack that began it all."""
    recorded = record(
        tmp_path,
        """
        import signatures
        threads = signatures.load("threads")
        def main():
            assert threads.allocate_in_grandchild(20, 1_000) == 0  # @grandchild
        """,
        libraries=["threads"],
    )
    inside = [s for s in recorded.stacks("grandchild", "native", "end") if s.frames[-1].kind == "native_thread"]
    assert sum(stack.bytes for stack in inside) == 20_000
    assert {tuple(frame.function for frame in stack.frames if frame.kind == "python") for stack in inside} == {
        ("<module>", "_record", "main")
    }


def test_a_native_thread_keeps_the_name_it_gave_itself(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        threads = signatures.load("threads")
        def main():
            assert threads.allocate_in_named_thread(10, 1_000) == 0  # @named
        """,
        libraries=["threads"],
    )
    inside = [s for s in recorded.stacks("named", "native", "end") if s.frames[-1].kind == "native_thread"]
    assert sum(stack.bytes for stack in inside) == 10_000
    for stack in inside:
        assert "named-in-c" in stack.thread + stack.frames[-1].function


def test_a_native_thread_calls_back_into_python(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import ctypes, signatures
        threads, heap = signatures.load("threads"), signatures.load("heap")
        def deeper():
            heap.take_malloc(1_000_003)  # @deeper
        @ctypes.CFUNCTYPE(None)
        def called():
            deeper()
        def main():
            assert threads.call_in_thread(ctypes.cast(called, ctypes.c_void_p).value) == 0
            heap.take_malloc(1_000_033)  # @here
        """,
        libraries=["threads", "heap"],
    )
    (stack,) = recorded.stacks("deeper", "native", "end")
    assert stack.bytes == 1_000_003
    assert [frame.function for frame in stack.frames[-2:]] == ["called", "deeper"]
    assert recorded.held("here", at="end") == 1_000_033


def test_allocations_while_a_thread_is_taken_apart(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        threads, objects = signatures.load("threads"), signatures.load("objects")
        def main():
            assert threads.allocate_in_destructor(1_000_003) == 0  # @key
            objects.allocate_in_thread_local_destructor(1_000_033)  # @local
        """,
        libraries=["threads", "objects"],
    )
    assert sum(s.bytes for s in recorded.stacks("key", "native", "end") if s.bytes > 1_000_000) == 1_000_003
    local = sum(s.bytes for s in recorded.stacks("local", "native", "end") if s.bytes > 1_000_000)
    assert local in {1_000_033, 1_000_033 + 16}, (
        "newer C libraries leave their note of such a destructor in the same place"
    )


def test_two_threads_churning_realloc_lose_nothing(tmp_path: Path) -> None:
    """40,000 kept blocks among moving ones, in one arena: an address given up by realloc is at once another's."""
    recorded = record(
        tmp_path,
        """
        import signatures
        threads = signatures.load("threads")
        def main():
            assert threads.use_one_arena() == 1
            assert threads.churn_in_two_threads(20_000, 104) == 0  # @churn
        """,
        libraries=["threads"],
    )
    inside = [s for s in recorded.stacks("churn", "native", "end") if s.frames[-1].kind == "native_thread"]
    assert (sum(s.bytes for s in inside), sum(s.blocks for s in inside)) == (40_000 * 104, 40_000)


needs_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor threads hardly meet")


def record_at_once(folder: Path, turn: str, back: str, figures: str, *, shared: int) -> tuple[Recorded, int, Any]:
    """Records threads that do `turn` at once: again, after `back`, until they shared so many events. With how many
    times that was, and what the expression `figures` gave at the end."""
    recorded = record(
        folder,
        f"""
        import json, time
        import signatures
        import hiwater._core as _core
        threads = signatures.load("threads")
        def turn():
            assert threads.{turn} == 0  # @turn
        def main():
            times, until = 1, time.monotonic() + 240  # they seldom meet where others have the processors
            turn()
            while _core.counters()["shared_events"] < {shared} and time.monotonic() < until:
                threads.{back}()
                turn()
                times += 1
            print(json.dumps([times, {figures}, _core.counters()["shared_events"]]))
        """,
        libraries=["threads"],
    )
    times, told, shared_events = json.loads(recorded.stdout)
    assert shared_events >= shared, "the threads hardly met: nothing of what is tested here was done"
    return recorded, times, told


@needs_processors
@pytest.mark.parametrize("count", [2, 5])
def test_threads_that_allocate_at_once(tmp_path: Path, count: int) -> None:
    """They keep books apart; brought together, every figure is exact: what is live, what was allocated, and the
    peak."""
    sizes_of = "[threads.size_in_ring(slot) for slot in range(threads.slots_of_ring())]"
    recorded, times, sizes = record_at_once(
        tmp_path, f"turn_rings({count}, 100_000)", "give_rings_back", sizes_of, shared=1
    )
    at_peak = [s for s in recorded.stacks("turn", "native", "peak") if s.frames[-1].kind == "native_thread"]
    assert (sum(s.bytes for s in at_peak), sum(s.blocks for s in at_peak)) == (count * sum(sizes), count * len(sizes))
    at_end = [s for s in recorded.stacks("turn", "native", "end") if s.frames[-1].kind == "native_thread"]
    assert sum(s.bytes for s in at_end) == count * sum(sizes[1::2])
    in_threads = [
        record
        for record, _, _ in recorded.capture.accounts("end")
        if recorded.capture.frames(record["node"])[1][-1:]
        and recorded.capture.frames(record["node"])[1][-1].kind == "native_thread"
    ]
    assert sum(record["total_blocks"] for record in in_threads) == times * count * (len(sizes) + 100_000)


@needs_processors
@pytest.mark.parametrize("count", [2, 5])
def test_the_peak_of_threads_that_keep_blocks_at_once(tmp_path: Path, count: int) -> None:
    """The total rises at nearly each event, and what the peak is depends on their order: one thread frees a large block
    before another allocates the next."""
    arguments = f"({count}, 200_000)"
    # Threads that only count share a few thousand events meanwhile.
    recorded, _, expected = record_at_once(
        tmp_path, f"grow_together{arguments}", "give_growth_back", f"threads.bytes_of_growth{arguments}", shared=20_000
    )
    at_peak = [s for s in recorded.stacks("turn", "native", "peak") if s.frames[-1].kind == "native_thread"]
    assert (sum(s.bytes for s in at_peak), sum(s.blocks for s in at_peak)) == (expected, count * 200_000 + 1)


def test_blocks_freed_by_another_thread(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        threads = signatures.load("threads")
        def main():
            assert threads.allocate_here_free_there(50_000, 40) == 0  # @crossing
        """,
        libraries=["threads"],
    )
    chain = [s for s in recorded.stacks("crossing", "native", "peak") if s.frames[-1].kind == "python"]
    assert sum(s.bytes for s in chain) >= 50_000 * 40
    assert recorded.held("crossing", at="end") < 10_000, "only what libc keeps for the thread may be left"


def test_a_fork_in_c_leaves_the_parents_books_alone(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        threads, heap = signatures.load("threads"), signatures.load("heap")
        def main():
            heap.take_malloc(1_000_003)  # @before_fork
            assert threads.allocate_in_fork(64_000_000) == 7  # @fork
            heap.take_malloc(1_000_033)  # @after_fork
        """,
        libraries=["threads", "heap"],
    )
    assert recorded.held("before_fork", at="end") == 1_000_003
    assert recorded.held("after_fork", at="end") == 1_000_033
    assert recorded.held("fork", at="end") == 0
    assert recorded.capture.peak_bytes < 10_000_000


def test_a_fork_in_python_leaves_the_parents_books_alone(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import os, signatures
        heap = signatures.load("heap")
        def main():
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    block = bytearray(50_000_000)
                    heap.take_malloc(30_000_000)
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            heap.take_malloc(1_000_033)  # @after_fork
        """,
        libraries=["heap"],
    )
    assert recorded.held("after_fork", at="end") == 1_000_033
    assert recorded.capture.peak_bytes < 10_000_000


def test_a_thread_alive_before_the_recording_has_its_full_stack(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import threading, signatures
        heap = signatures.load("heap")
        go, done = threading.Event(), threading.Event()
        def innermost():
            heap.take_malloc(1_000_003)  # @block
        def middle():
            go.wait()
            innermost()  # @call
            done.set()
        def outermost():
            middle()
        def before():
            threading.Thread(target=outermost, name="older", daemon=True).start()
        def main():
            go.set()
            done.wait()
        """,
        libraries=["heap"],
    )
    (stack,) = recorded.stacks("block", "native", "end")
    assert stack.bytes == 1_000_003
    functions = [frame.function for frame in stack.frames if frame.kind == "python"]
    assert functions[-6:] == [
        "Thread._bootstrap",
        "Thread._bootstrap_inner",
        "Thread.run",
        "outermost",
        "middle",
        "innermost",
    ]
    assert stack.frames[-2].line == recorded.line("call")


def test_python_threads_have_their_own_stacks_and_names(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import threading, signatures
        heap = signatures.load("heap")
        def load(size):
            heap.take_malloc(size)  # @load
        def main():
            workers = [threading.Thread(target=load, args=(1_000_000 + n,), name=f"loader-{n}") for n in range(8)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
        """,
        libraries=["heap"],
    )
    assert {s.thread: s.bytes for s in recorded.stacks("load", "native", "end")} == {
        f"loader-{n}": 1_000_000 + n for n in range(8)
    }


def test_many_threads_in_python_and_in_c_at_once(tmp_path: Path) -> None:
    """Allocation without the interpreter's lock beside allocation with it; every block is there afterwards."""
    recorded = record(
        tmp_path,
        """
        import threading, signatures
        heap = signatures.load("heap")
        def native():
            for _ in range(300):
                heap.take_chain(100, 48)  # @native
                heap.give_back_chain(heap.take_chain(100, 48))  # @gone
        def python():
            kept.append([bytes(600) for _ in range(2_000)])  # @python
        kept = []
        def main():
            workers = [threading.Thread(target=target) for target in (native, python) * 4]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
        """,
        libraries=["heap"],
    )
    assert recorded.blocks("native", at="end") == 4 * 300 * 100
    assert recorded.held("native", at="end") == 4 * 300 * 100 * 48
    assert recorded.held("gone", at="end") == 0
    assert (
        sum(s.bytes for s in recorded.capture.stacks("end") if s.passes("python") and s.kind == "python")
        >= 4 * 2_000 * 633
    )


def test_a_thread_that_allocates_little_takes_little(tmp_path: Path) -> None:
    """Its caches are for thousands of call paths; pages that it does not use stay untouched."""
    recorded = record(
        tmp_path,
        """
        import ctypes, os
        import signatures
        workers = ctypes.CDLL(os.path.join(os.environ["HIWATER_TEST_LIBRARIES"], "workers.so"))
        for name in ("start_worker", "worker_allocates"):
            getattr(workers, name).argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        def start(number):
            assert workers.start_worker(number, 0) == 0
            assert workers.worker_allocates(number, 100) == 0
        def main():
            for number in range(4):
                start(number)
            before = resident()
            for number in range(4, 64):
                start(number)
            print((resident() - before) // 60)
        """,
        libraries=["workers"],
    )
    assert int(recorded.stdout) < 96 * 1024


def test_a_thread_that_ends_soon_takes_few_pages(tmp_path: Path) -> None:
    """A server may start one for each request. What the recorder keeps for a thread serves the next one."""
    recorded = record(
        tmp_path,
        """
        import resource, threading
        def faults_of_threads(count):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(count):
                thread = threading.Thread(target=bytearray, args=(100,))
                thread.start()
                thread.join()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        def main():
            faults_of_threads(100)
            print(faults_of_threads(200) / 200)
        """,
    )
    assert float(recorded.stdout) < 5  # one of them is the plain run's


def test_a_thread_of_python_takes_little(tmp_path: Path) -> None:
    """It has been through some thirty lines when it waits. They share the pages of its caches."""
    recorded = record(
        tmp_path,
        """
        import os, threading
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        def wait(number):
            kept = {"numbers": [number] * 10}
            waiting.release()
            end.wait()
        end, waiting = threading.Event(), threading.Semaphore(0)
        def main():
            before = resident()
            threads = [threading.Thread(target=wait, args=(number,)) for number in range(200)]
            for thread in threads: thread.start()
            for _ in threads: waiting.acquire()
            print((resident() - before) // len(threads))
            end.set()
            for thread in threads: thread.join()
        """,
    )
    assert int(recorded.stdout) < 64 * 1024  # a fourth of it in the plain run
