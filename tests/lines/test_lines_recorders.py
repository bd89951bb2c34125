"""The engine's recorder of lines and its twin in Python: one suite over both, with a meter whose every value is
known."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hiwater.errors import BadRequest, EngineUnavailable
from hiwater.lines import FunctionLines, LineProfiler, core, report, without_engine
from line_recorders import RECORDERS, of, use_recorder
from recording import child_environment, needs_engine

MIB = 1 << 20


class Quantity:
    """What the meter reads: moved by the code that is measured."""

    def __init__(self) -> None:
        self.bytes = 0
        self.readings = 0

    def read(self) -> int:
        self.readings += 1
        return self.bytes


used = Quantity()


def grow(size: int) -> None:
    used.bytes += size


@pytest.fixture(params=RECORDERS, autouse=True)
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    used.__init__()  # type: ignore[misc]
    found = sys.gettrace(), threading.gettrace()
    yield from use_recorder(request.param, monkeypatch)
    assert (sys.gettrace(), threading.gettrace()) == found


def measured(run: Callable[[], Any], *given: Any, here: bool = False, **options: Any) -> list[FunctionLines]:
    profiler = LineProfiler(given, heap=False, meter=used.read, **options)
    profiler.enable(here=here)
    try:
        run()
    finally:
        profiler.disable()
    return profiler.results()


def figures(results: list[FunctionLines], *names: str) -> list[tuple[int, int]]:
    """(calls, change) of the lines so named."""
    return [(of(results, name).calls, of(results, name).resident_bytes) for name in names]


def test_changes_levels_and_calls() -> None:
    def work(rounds: int) -> None:
        grow(100)  # @once
        for _ in range(rounds):
            grow(10)  # @round
            grow(-4)  # @back
        total = rounds  # @nothing
        del total

    used.bytes = 1000
    results = measured(lambda: (work(2), work(3)), work)
    assert figures(results, "once", "round", "back", "nothing") == [(2, 200), (5, 50), (5, -20), (2, 0)]
    line = of(results, "round")
    assert line.resident_highest_bytes == 1000 + 112 + 100 + 12 + 10
    assert line.resident_end_bytes - line.resident_start_bytes == 10
    assert (line.kept_bytes, line.allocated_bytes, line.peak_bytes) == (None, None, None)
    assert (results[0].calls, results[0].resident_first_bytes) == (2, 1000)


def test_what_a_line_calls_is_in_it() -> None:
    def inner() -> None:
        grow(5)  # @inner

    def outer() -> None:
        inner()  # @call

    assert figures(measured(outer, outer, inner), "inner", "call") == [(1, 5), (1, 5)]


def dive(depth: int) -> None:
    grow(10)  # @take
    if depth:
        dive(depth - 1)  # @dive
    grow(1)  # @after


def test_recursion_as_the_outermost_calls_or_told_apart() -> None:
    together = measured(lambda: dive(3), dive)
    assert figures(together, "take", "dive", "after") == [(4, 40), (3, 33), (4, 4)]
    apart = measured(lambda: dive(3), dive, recursion_apart=True)
    assert figures(apart, "take", "dive", "after") == [(4, 40), (3, 0), (4, 4)]
    assert apart[0].calls == together[0].calls == 4


def test_recursion_told_apart_is_all_there_is() -> None:
    def tree(depth: int) -> list[Any]:
        below = [tree(depth - 1) for _ in range(2 if depth else 0)]
        grow(depth)
        return below

    results = measured(lambda: tree(4), tree, recursion_apart=True)
    total = 4 + 2 * 3 + 4 * 2 + 8
    if sys.version_info >= (3, 12):  # else the comprehension is a frame of its own, and the calls are made in that
        assert sum(line.resident_bytes for line in results[0].lines) == used.bytes == total
    assert used.bytes == total


def test_a_generator_is_charged_for_its_own_stretches() -> None:
    def numbers() -> Iterator[int]:
        grow(1)  # @first
        pair = grow(2), (yield 1), grow(3)  # @middle
        yield len(pair)

    def run() -> None:
        for _ in numbers():
            grow(1000)

    results = measured(run, numbers)
    assert figures(results, "first", "middle") == [(1, 1), (1, 5)]
    assert results[0].calls == 1


def test_generators_dropped_and_thrown_into() -> None:
    def numbers() -> Iterator[int]:
        try:
            yield 1
        except ValueError:
            grow(7)  # @caught
        finally:
            grow(2)  # @last

    def run() -> None:
        dropped = numbers()
        next(dropped)
        grow(500)
        del dropped
        thrown = numbers()
        next(thrown)
        with pytest.raises(StopIteration):
            thrown.throw(ValueError)

    assert figures(measured(run, numbers), "caught", "last") == [(1, 7), (2, 4)]


def test_coroutines_and_async_generators_take_turns() -> None:
    async def worker(size: int) -> None:
        grow(size)  # @worker
        await asyncio.sleep(0.001)  # @sleep
        grow(1)  # @awake

    async def blocks() -> Any:
        for _ in range(3):
            yield grow(20)  # @yield

    async def main() -> None:
        await asyncio.gather(worker(100), worker(200))
        async for _ in blocks():
            grow(1000)

    results = measured(lambda: asyncio.run(main()), worker, blocks)
    assert figures(results, "worker", "sleep", "awake", "yield") == [(2, 300), (2, 0), (2, 2), (3, 60)]


def test_an_exception_ends_the_line() -> None:
    def fails() -> None:
        grow(3)
        raise ValueError  # @raise

    def catches() -> None:
        try:
            fails()  # @call
        except ValueError:
            grow(50)  # @handler

    assert figures(measured(catches, fails, catches), "raise", "call", "handler") == [(1, 0), (1, 3), (1, 50)]


def test_code_inside_a_function_is_its_own() -> None:
    def outer() -> None:
        _ = [grow(1) for _ in range(10)]  # @comprehension
        add = lambda: grow(5)  # noqa: E731  # @lambda
        add()  # @called

    results = measured(outer, outer)
    assert len(results) == 1
    assert figures(results, "comprehension")[0][1] == 10 and figures(results, "called") == [(1, 5)]


def test_one_thread_alone_or_all() -> None:
    def work() -> None:
        grow(1)  # @work

    def run() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        work()

    assert figures(measured(run, work), "work") == [(4, 4)]
    assert figures(measured(run, work, here=True), "work") == [(1, 1)]


def test_switched_on_and_off_in_the_middle_of_a_function() -> None:
    profiler = LineProfiler(heap=False, meter=used.read)

    def work() -> None:
        profiler.enable()
        grow(2)  # @inside
        profiler.disable()
        grow(4)  # @outside

    profiler.add_function(work)
    work()
    assert figures(profiler.results(), "inside", "outside") == [(1, 2), (0, 0)]
    profiler.clear()
    assert profiler.results()[0].lines == [] and profiler.results()[0].calls == 0


def test_wrapped_functions_and_several_profilers() -> None:
    first, second = (LineProfiler(heap=False, meter=used.read) for _ in range(2))

    @first.wrap
    def work() -> None:
        grow(2)  # @wrapped

    second.add_function(work)
    work()
    with second:
        work()
    work()
    first.close()
    assert figures(first.results(), "wrapped") == [(3, 6)] and figures(second.results(), "wrapped") == [(1, 2)]


def test_events_of_a_trace_function_that_the_caller_sets() -> None:
    def work() -> None:
        grow(9)  # @fed

    found = sys.gettrace()
    profiler = LineProfiler([work], heap=False, meter=used.read)
    sys.settrace(profiler.trace)
    try:
        work()
    finally:
        sys.settrace(found)
    work()
    profiler.close()
    assert figures(profiler.results(), "fed") == [(1, 9)] and profiler.results()[0].calls == 1


def test_a_meter_that_fails_costs_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    def meter() -> int:
        if used.bytes == 5:
            raise OSError("gone")
        return used.bytes

    def work() -> None:
        grow(5)
        grow(1)
        grow(1)  # @well

    with LineProfiler([work], heap=False, meter=meter) as profiler:
        work()
    assert figures(profiler.results(), "well") == [(1, 1)]
    assert heard and isinstance(heard[0].exc_value, OSError) and heard[0].object is meter
    heard.clear()  # it holds the traceback, and so this frame


def test_an_interrupt_inside_the_meter_reaches_the_program() -> None:
    def meter() -> int:
        if used.bytes == 5:
            used.bytes = 0
            raise KeyboardInterrupt
        return used.bytes

    def work() -> None:
        grow(5)
        grow(1)

    profiler = LineProfiler([work], heap=False, meter=meter)
    with pytest.raises(KeyboardInterrupt), profiler:
        work()
    assert used.bytes == 0


def test_a_meter_may_switch_everything_off_while_it_is_read() -> None:
    profilers: list[LineProfiler] = []

    def meter() -> int:
        if used.bytes >= 3:
            while profilers:
                profilers.pop().close()
        return used.bytes

    def work(depth: int) -> None:
        grow(1)
        if depth:
            work(depth - 1)
        grow(1)

    for _ in range(3):
        profiler = LineProfiler([work], heap=False, meter=meter)
        profiler.enable()
        profilers.append(profiler)
    del profiler
    work(6)
    assert used.bytes == 14 and not profilers


def test_threads_change_places_while_the_meter_is_read() -> None:
    def work(depth: int) -> int:
        found = [number for number in range(3)]  # noqa: C416 - a frame of its own on 3.11
        return len(found) + (work(depth - 1) if depth else 0)

    def meter() -> int:
        time.sleep(0)  # lets go of the interpreter's lock
        return 0

    stop = threading.Event()

    def keep_working() -> None:
        while not stop.is_set():
            work(5)

    threads = [threading.Thread(target=keep_working) for _ in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    try:
        for number in range(30):
            profiler = LineProfiler([work], heap=False, meter=meter, recursion_apart=bool(number % 2))
            profiler.enable(here=number % 3 == 0)
            assert work(3) == 12
            profiler.disable()
            figures = profiler.results()[0]
            assert figures.calls >= 4 and figures.lines[0].calls >= 4
            if number % 3 == 0:
                assert figures.calls == 4
            del profiler
    finally:
        sys.setswitchinterval(before)
        stop.set()
        for thread in threads:
            thread.join()


def test_resident_memory_is_what_is_read_by_default() -> None:
    def work() -> bytes:
        return b"x" * (64 * MIB)  # @touch

    profiler = LineProfiler([work], heap=False)
    with profiler:
        work()
    line = of(profiler.results(), "touch")
    assert abs(line.resident_bytes - 64 * MIB) < 2 * MIB
    text = report.as_text(profiler.results(), why_without_heap=profiler.why_without_heap)
    assert "resident" in text.splitlines()[2] and "kept" not in text.splitlines()[2]
    assert "there are no heap figures, it was not asked for; resident is" in text


PROGRAM = """
def step(chance, depth):
    for _ in range(chance.randrange(5)):
        choice = chance.random()
        if choice < 0.4:
            grow(chance.randrange(1000))
        elif choice < 0.6 and depth:
            step(chance, depth - 1)
        elif choice < 0.7 and depth:
            [step(chance, depth - 1) for _ in range(2)]
        elif choice < 0.85:
            steps = generate(chance)
            next(steps); grow(chance.randrange(1000))
            next(steps, None) if choice < 0.8 else steps.close()
        else:
            try:
                fail(chance)
            except KeyError:
                grow(1)
def generate(chance):
    yield grow(chance.randrange(1000))
    grow(chance.randrange(1000))
def fail(chance):
    grow(chance.randrange(1000)); raise KeyError
"""


@needs_engine
@pytest.mark.parametrize("recursion_apart", [False, True])
def test_both_say_the_same_of_random_code(recursion_apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"grow": grow}
    exec(compile(PROGRAM, "<program>", "exec"), names)
    for seed in range(150):
        said = []
        for module in (without_engine, sys.modules["hiwater._core"]):
            monkeypatch.setattr(core, "_module", module)
            used.bytes = 0
            results = measured(
                lambda seed=seed: names["step"](random.Random(seed), 4), names["step"], names["generate"],
                names["fail"], recursion_apart=recursion_apart,
            )  # fmt: skip
            said.append([function.to_dict() for function in results])
        assert said[0] == said[1], seed


def test_without_the_engine_there_must_be_something_left_to_measure(recorder: str) -> None:
    if recorder == "engine":
        assert LineProfiler(resident=False).why_without_heap == ""
        return
    assert LineProfiler().why_without_heap
    with pytest.raises(EngineUnavailable, match="resident memory alone"):
        LineProfiler(resident=False)
    with pytest.raises(BadRequest):
        LineProfiler([len])


def test_a_listener_hears_of_every_event_of_the_code_and_tells_frames_apart() -> None:
    heard: list[tuple[int, int, str, int]] = []

    def numbers() -> Iterator[int]:
        yield 1  # @yield
        grow(1)

    def work(depth: int) -> None:
        if depth:
            work(depth - 1)
        for _ in numbers():
            pass

    def listen(what: int, frame: int, code: Any, line: int) -> None:
        heard.append((what, frame, code.co_name, line - code.co_firstlineno if line else 0))

    with LineProfiler([work, numbers], heap=False, resident=False, listener=listen):
        work(1)
    works = [(what, line) for what, _, name, line in heard if name == "work"]
    assert works == [(0, 1), (0, 2), (0, 1), (0, 3), (0, 4), (0, 3), (2, 0), (0, 3), (0, 4), (0, 3), (2, 0)]
    assert len({frame for _, frame, name, _ in heard if name == "work"}) == 2
    stretches = [(what, line) for what, _, name, line in heard if name == "numbers"]
    last = stretches[-1]
    assert last in ((2, 0), (3, 0))  # a trace function cannot tell a generator's end from a yield
    assert stretches == [(0, 1), (3, 0), (1, 1), (0, 2), last] * 2


def test_what_a_listener_allocates_is_in_no_figure_of_the_heap(recorder: str) -> None:
    if recorder == "python":
        pytest.skip("it has no figures of the heap")
    kept: list[bytearray] = []

    def work() -> None:
        grow(1)
        grow(1)

    with LineProfiler([work], resident=False, listener=lambda *_: kept.append(bytearray(MIB))) as profiler:
        work()
    assert len(kept) == 3
    for line in profiler.results()[0].lines:
        assert line.allocated_bytes is not None and line.allocated_bytes < 4096
        assert line.kept_bytes is not None and abs(line.kept_bytes) < 4096


def test_a_listener_that_fails_is_told_of_and_an_interrupt_in_it_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    raised: list[BaseException] = [KeyboardInterrupt(), ValueError()]

    def listen(*_: object) -> None:
        if raised:
            raise raised.pop()

    def work() -> None:
        grow(1)
        grow(1)

    with pytest.raises(KeyboardInterrupt), LineProfiler([work], heap=False, resident=False, listener=listen):
        work()
    assert [type(each.exc_value) for each in heard] == [ValueError] and used.bytes == 1
    heard.clear()


def test_a_listener_goes_with_its_profiler() -> None:
    class Listener:
        def __call__(self, *_: object) -> None:
            pass

    def work() -> None:
        grow(1)

    listener = Listener()
    gone = weakref.ref(listener)
    profiler = LineProfiler([work], heap=False, resident=False, listener=listener)
    with profiler:
        work()
    del profiler, listener
    gc.collect()
    assert gone() is None


@needs_engine
def test_a_listener_that_leads_to_its_profiler_is_collected_when_the_program_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from hiwater.lines import LineProfiler\ndef work(): pass\n"
        "profiler = LineProfiler([work], listener=lambda *_: profiler)\nwith profiler:\n    work()\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, env=child_environment(), check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
