"""What the line profiler says of every kind of code: calls, kept, allocated, and the peak above a line's start."""

from __future__ import annotations

import asyncio
import functools
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hiwater.errors import BadRequest
from hiwater.lines import FunctionLines, LineProfiler
from line_recorders import of
from recording import needs_engine

pytestmark = needs_engine
MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    found = sys.gettrace(), threading.gettrace()
    yield
    from hiwater import _core

    _core.lines_self_check()
    assert (sys.gettrace(), threading.gettrace()) == found
    if sys.version_info >= (3, 12):
        assert all(sys.monitoring.get_tool(number) != "hiwater lines" for number in range(6))


def measured(run: Callable[[], Any], *functions: Any) -> list[FunctionLines]:
    profiler = LineProfiler(functions)
    try:
        with profiler:
            run()
        return profiler.results()
    finally:
        profiler.close()


def near(count: int, wanted: int, within: int = 1000) -> bool:
    """What the interpreter itself allocates for a call is in the figures: a few hundred bytes."""
    return abs(count - wanted) <= within


def test_a_temporary_inside_a_line_is_its_peak() -> None:
    def work() -> None:
        total = len([0] * 30_000_000)  # @temporary
        del total

    line = of(measured(work, work), "temporary")
    assert line.calls == 1
    assert near(line.peak_bytes, 240_000_000)
    assert near(line.kept_bytes, 0)
    assert near(line.allocated_bytes, 240_000_000)
    assert line.peak_bytes / MIB == pytest.approx(228.9, abs=0.1)


def test_increments_of_a_growing_list_are_right() -> None:
    kept = []

    def grow() -> None:
        for number in range(50):  # @loop
            kept.append(bytes(100_000 if number % 2 else 10))  # @grow
            _ = number  # @nothing

    results = measured(grow, grow)
    assert of(results, "grow").calls == of(results, "nothing").calls == 50
    assert near(of(results, "grow").kept_bytes, 25 * 100_033 + 25 * 43, within=1200)
    assert of(results, "nothing").kept_bytes == of(results, "nothing").allocated_bytes == 0
    assert of(results, "nothing").peak_bytes == 0
    assert of(results, "loop").calls == 51


def test_what_a_line_frees_is_below_zero() -> None:
    def work() -> None:
        block = bytearray(5 * MIB)  # @take
        del block  # @free

    results = measured(work, work)
    assert near(of(results, "take").kept_bytes, 5 * MIB)
    assert near(of(results, "free").kept_bytes, -5 * MIB)
    assert of(results, "free").peak_bytes == 0


def test_resident_memory_grows_where_it_is_touched() -> None:
    def work() -> bytes:
        return b"x" * (64 * MIB)  # @touch

    results = measured(work, work)
    line = of(results, "touch")
    assert near(line.resident_bytes, 64 * MIB, within=2 * MIB)
    assert line.resident_end_bytes - line.resident_start_bytes == line.resident_bytes
    assert line.resident_highest_bytes == line.resident_end_bytes
    profiler = LineProfiler([work], resident=False)
    with profiler:
        work()
    assert of(profiler.results(), "touch").resident_end_bytes == 0


def test_generators_that_yield_in_the_middle_of_a_line() -> None:
    outside = []

    def numbers() -> Iterator[int]:
        first = bytearray(MIB)  # @first
        pair = bytearray(2 * MIB), (yield 1), bytearray(3 * MIB)  # @middle
        yield len(pair) + len(first)  # @last

    def run() -> None:
        steps = numbers()
        for _ in steps:
            outside[:] = [bytearray(50 * MIB)]  # while the generator sleeps: none of its lines'
        outside.clear()

    results = measured(run, numbers)
    assert near(of(results, "first").kept_bytes, MIB)
    line = of(results, "middle")
    assert line.calls == 1
    assert near(line.kept_bytes, 5 * MIB)
    assert near(line.peak_bytes, 5 * MIB)
    assert near(line.allocated_bytes, 5 * MIB)


def test_a_generator_that_is_dropped_or_thrown_into() -> None:
    def numbers() -> Iterator[int]:
        try:
            yield 1
            yield 2  # @never
        except ValueError:
            block = bytearray(MIB)  # @caught
            del block
        finally:
            other = bytearray(2 * MIB)  # @last
            del other

    def run() -> None:
        dropped = numbers()
        next(dropped)
        del dropped
        thrown = numbers()
        next(thrown)
        with pytest.raises(StopIteration):
            thrown.throw(ValueError)

    results = measured(run, numbers)
    assert of(results, "never").calls == 0
    assert of(results, "caught").calls == 1
    assert near(of(results, "caught").kept_bytes, MIB)
    assert of(results, "last").calls == 2
    assert near(of(results, "last").peak_bytes, 2 * MIB)


def test_coroutines_take_turns_and_keep_their_own_figures() -> None:
    async def worker(size: int) -> int:
        block = bytearray(size)  # @take
        await asyncio.sleep(0.001)  # @sleep
        return len(block)

    async def main() -> None:
        await asyncio.gather(*(worker(size * MIB) for size in (1, 2, 3)))

    results = measured(lambda: asyncio.run(main()), worker)
    assert (of(results, "take").calls, of(results, "sleep").calls) == (3, 3)
    assert near(of(results, "take").kept_bytes, 6 * MIB, within=2000)
    assert near(of(results, "take").peak_bytes, 3 * MIB)
    assert of(results, "sleep").peak_bytes < 100_000


def test_async_generators() -> None:
    async def blocks() -> Any:
        for _ in range(3):
            yield bytearray(MIB)  # @yield
        await asyncio.sleep(0)

    async def main() -> None:
        async for block in blocks():
            assert len(block) == MIB

    line = of(measured(lambda: asyncio.run(main()), blocks), "yield")
    assert line.calls == 3
    assert near(line.allocated_bytes, 3 * MIB, within=3000)
    assert near(line.peak_bytes, MIB)


def test_recursion_counts_each_byte_once() -> None:
    def dive(depth: int) -> Any:
        block = bytearray(MIB)  # @take
        below = dive(depth - 1) if depth else None  # @dive
        return block, below

    results = measured(lambda: dive(9), dive)
    assert of(results, "take").calls == of(results, "dive").calls == 10
    assert near(of(results, "take").kept_bytes, 10 * MIB, within=5000)
    assert near(of(results, "take").peak_bytes, MIB)
    assert near(of(results, "dive").kept_bytes, 9 * MIB, within=9000)
    assert near(of(results, "dive").peak_bytes, 9 * MIB, within=9000)


def test_deep_recursion() -> None:
    def dive(depth: int) -> int:
        return dive(depth - 1) + 1 if depth else 0  # @dive

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        line = of(measured(lambda: dive(3_000), dive), "dive")
    finally:
        sys.setrecursionlimit(before)
    assert line.calls == 3_001


def test_peaks_pass_from_the_called_line_to_the_calling_one() -> None:
    def inner() -> None:
        block = bytearray(3 * MIB)  # @inner
        del block

    def outer() -> None:
        kept = bytearray(MIB)  # @before
        inner()  # @call
        other = bytearray(100)  # @after
        del kept, other

    results = measured(outer, outer, inner)
    assert near(of(results, "inner").peak_bytes, 3 * MIB)
    assert near(of(results, "call").peak_bytes, 3 * MIB)
    assert near(of(results, "call").kept_bytes, 0)
    assert of(results, "after").peak_bytes < 1000


def test_an_exception_ends_the_line_where_it_leaves_the_function() -> None:
    def fails() -> None:
        block = bytearray(MIB)  # @take
        raise ValueError(len(block))  # @raise

    def catches() -> None:
        try:
            fails()  # @call
        except ValueError:
            other = bytearray(20 * MIB)  # @caught
            del other

    results = measured(catches, fails, catches)
    assert of(results, "raise").calls == 1
    assert of(results, "raise").peak_bytes < 10_000, "what the handler took is not the raising line's"
    assert near(of(results, "caught").peak_bytes, 20 * MIB, within=2000)


def test_threads_have_figures_of_their_own() -> None:
    barrier = threading.Barrier(4)

    def worker(size: int) -> None:
        barrier.wait()
        for _ in range(20):
            block = bytearray(size)  # @take
            del block  # @free

    def run() -> None:
        threads = [threading.Thread(target=worker, args=(MIB,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    results = measured(run, worker)
    line = of(results, "take")
    assert line.calls == 80
    assert near(line.peak_bytes, MIB), "what other threads held meanwhile is not in it"
    assert near(line.kept_bytes, 80 * MIB, within=80 * 200)
    assert near(of(results, "free").kept_bytes, -80 * MIB, within=80 * 200)


def test_comprehensions_lambdas_and_inner_functions_belong_to_their_function() -> None:
    def outer() -> int:
        squares = [number * number for number in range(100_000)]  # @comprehension
        double = lambda n: bytearray(n + 1)  # noqa: E731  # @lambda

        def inner() -> bytearray:
            return bytearray(MIB)  # @inner

        return len(squares) + len(double(1000)) + len(inner())  # @call

    results = measured(outer, outer)
    assert len(results) == 1
    assert of(results, "comprehension").kept_bytes > 800_000
    if sys.version_info < (3, 12):
        assert of(results, "comprehension").calls == 1
    assert near(of(results, "inner").kept_bytes, MIB)
    assert near(of(results, "call").peak_bytes, MIB, within=2000)


def test_an_empty_line_costs_nothing_wherever_it_stands() -> None:
    source = "\n" * 5000 + "def late():\n    a = 1\n    b = a\n    return b\n"
    names: dict[str, Any] = {}
    exec(compile(source, "<late>", "exec"), names)
    for line in measured(names["late"], names["late"])[0].lines:
        assert (line.kept_bytes, line.allocated_bytes, line.peak_bytes) == (0, 0, 0), line


def test_functions_of_a_notebook() -> None:
    source = "def cell():\n    kept = bytearray(1 << 20)\n    return len(kept)\n"
    file = "<ipython-input-1-abcdef>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    results = measured(names["cell"], names["cell"])
    assert results[0].file == file
    assert near(results[0].lines[0].kept_bytes, MIB)
    from hiwater.lines import report

    assert "kept = bytearray(1 << 20)" in report.as_text(results)


class Kinds:
    """One of each."""

    @property
    def prop(self) -> int:
        return len(bytearray(1000))  # @property

    @staticmethod
    def static() -> int:
        return len(bytearray(1000))  # @static

    @classmethod
    def of_class(cls) -> int:
        return len(bytearray(1000))  # @of_class

    @functools.cached_property
    def cached(self) -> int:
        return len(bytearray(1000))  # @cached

    def method(self, size: int) -> int:
        return len(bytearray(size))  # @method

    def __call__(self) -> int:
        return len(bytearray(1000))  # @called

    class Inner:
        def deep(self) -> int:
            return len(bytearray(1000))  # @deep


@functools.lru_cache
def cached(size: int) -> int:
    return len(bytearray(size))  # @lru


def use_all() -> None:
    kinds = Kinds()
    _ = kinds.prop, kinds.cached
    Kinds.static(), Kinds.of_class(), kinds.method(1000), kinds(), Kinds.Inner().deep(), cached(1000)
    cached.cache_clear()


@pytest.mark.parametrize(
    "given",
    [
        (Kinds, cached),
        (types.ModuleType("stand_in"),),
        (
            Kinds.__dict__["prop"], Kinds.static, Kinds.of_class, Kinds.__dict__["cached"], Kinds().method,
            functools.partial(Kinds.method, size=1000), Kinds(), Kinds.Inner.deep, cached,
        ),
    ],
    ids=["class", "module", "each"],
)  # fmt: skip
def test_everything_that_can_be_handed_over(given: tuple[Any, ...]) -> None:
    if isinstance(given[0], types.ModuleType):
        given = (sys.modules[__name__],)
    results = measured(use_all, *given)
    for name in ("property", "static", "of_class", "cached", "method", "called", "deep", "lru"):
        assert of(results, name).calls == 1, name
        assert near(of(results, name).peak_bytes, 1000, within=700), name


def test_what_has_no_code_is_refused() -> None:
    with pytest.raises(BadRequest, match="no Python code"):
        LineProfiler([len])


def test_enabling_nests_and_a_second_profiler_does_not_disturb() -> None:
    def work() -> int:
        return len(bytearray(MIB))  # @work

    first, second = LineProfiler([work]), LineProfiler([work], resident=False)
    with first:
        with first, second:
            work()
        work()
    work()
    assert of(first.results(), "work").calls == 2
    assert of(second.results(), "work").calls == 1
    assert near(of(first.results(), "work").allocated_bytes, 2 * MIB, within=2000)
    first.clear()
    assert first.results()[0].lines == []


def test_a_profiler_switched_on_and_off_in_the_middle_of_a_function() -> None:
    profiler = LineProfiler()

    def work() -> None:
        before = bytearray(MIB)
        profiler.enable()
        inside = bytearray(2 * MIB)  # @inside
        profiler.disable()
        after = bytearray(4 * MIB)  # @after
        del before, inside, after

    profiler.add_function(work)
    work()
    assert near(of(profiler.results(), "inside").kept_bytes, 2 * MIB)
    assert of(profiler.results(), "after").calls == 0


def test_wrapped_functions_are_measured_when_called_and_stay_what_they_are() -> None:
    profiler = LineProfiler()

    @profiler.wrap
    def plain(size: int) -> int:
        """Says so."""
        return len(bytearray(size))  # @plain

    @profiler
    def steps(count: int) -> Iterator[int]:
        for number in range(count):
            got = yield len(bytearray(MIB)) + number  # @step
            assert got in (None, "sent")
        return "done"

    @profiler
    async def slow() -> int:
        await asyncio.sleep(0)
        return len(bytearray(MIB))  # @slow

    @profiler
    async def flow() -> Any:
        for number in range(3):
            try:
                yield number  # @flow
            except KeyError:
                yield "caught"  # @caught

    async def main() -> list[Any]:
        assert await slow() == MIB
        stream = flow()
        got = [await anext(stream), await stream.athrow(KeyError()), await anext(stream)]
        await stream.aclose()
        return got

    import inspect

    assert inspect.isgeneratorfunction(steps) and inspect.iscoroutinefunction(slow) and inspect.isasyncgenfunction(flow)
    assert plain.__doc__ == "Says so." and plain(1000) == 1000
    running = steps(2)
    assert next(running) == MIB and running.send("sent") == MIB + 1
    with pytest.raises(StopIteration, match="done"):
        next(running)
    assert asyncio.run(main()) == [0, "caught", 1]
    results = profiler.results()
    profiler.close()
    assert [of(results, name).calls for name in ("plain", "step", "slow", "flow", "caught")] == [1, 2, 1, 2, 1]
    assert near(of(results, "step").peak_bytes, MIB)
    assert plain(10) == 10


def test_many_profilers_leave_nothing() -> None:
    def work() -> int:
        return len(bytearray(1000))

    for _ in range(300):  # more than a byte counts
        profiler = LineProfiler([work], resident=False)
        with profiler:
            work()
        assert profiler.results()[0].lines[0].calls == 1


def test_code_objects_that_are_equal_are_two() -> None:
    names: list[dict[str, Any]] = [{}, {}]
    for each in names:
        exec(compile("def cell():\n    return len(bytearray(1000))\n", "<cell>", "exec"), each)
    first, second = (each["cell"] for each in names)
    assert first.__code__ == second.__code__ and first.__code__ is not second.__code__

    def run() -> None:
        first(), second(), second()

    assert [[line.calls for line in function.lines] for function in measured(run, first, second)] == [[1], [2]]
