"""Every sort of Python frame: the stack of a block is what `traceback` would have said at that moment."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

import compiled
import hiwater
import naive_reader
from children import run_hiwater
from places import EXTENSIONS, PROGRAMS
from recording import Recorded, needs_engine, record

pytestmark = needs_engine
PRELUDE = "import signatures\ntake = signatures.load('heap').take_malloc\n"


def run(folder: Path, text: str, sample_bytes: int = 0) -> Recorded:
    lines = [line[8:] if line.startswith(" " * 8) else line for line in text.strip("\n").splitlines()]
    return record(folder, PRELUDE + "\n".join(lines) + "\n", libraries=["heap"], sample_bytes=sample_bytes)


def functions(recorded: Recorded, name: str) -> list[str]:
    """The functions from `main` inwards, of the one stack that ends at the named line."""
    (stack,) = recorded.stacks(name, "native", "end")
    names = [frame.function for frame in stack.frames]
    return names[names.index("main") :]


def test_generators(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        def numbers():
            for size in (1_000_003, 2_000_003):
                take(size)  # @generator
                yield size
        def delegate():
            yield from numbers()
        def first(source):
            return next(source)  # @first
        def second(source):
            return next(source)  # @second
        def main():
            source = delegate()
            first(source)
            second(source)
        """,
    )
    stacks = recorded.stacks("generator", "native", "end")
    assert {s.frames[-3].function: s.bytes for s in stacks} == {"first": 1_000_003, "second": 2_000_003}
    assert {tuple(frame.function for frame in s.frames[-2:]) for s in stacks} == {("delegate", "numbers")}


def test_coroutines(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        import asyncio
        async def fetch(size):
            await asyncio.sleep(0)
            take(size)  # @fetch
            await asyncio.sleep(0)
        async def both():
            await asyncio.gather(fetch(1_000_003), fetch(2_000_003))
            await fetch(3_000_017)
        async def stream():
            for size in (100_003, 200_003):
                take(size)  # @stream
                yield size
        async def read():
            async for _ in stream():
                pass
        def main():
            asyncio.run(both())
            asyncio.run(read())
        """,
    )
    assert recorded.held("fetch", at="end") == 6_000_023
    awaited = [s for s in recorded.stacks("fetch", "native", "end") if s.passes("both")]
    assert [s.bytes for s in awaited] == [3_000_017], "gathered tasks stand alone, an awaited one stands on its awaiter"
    assert recorded.held("stream", at="end") == 300_006
    assert all(s.passes("read") for s in recorded.stacks("stream", "native", "end"))


def test_greenlets(tmp_path: Path) -> None:
    pytest.importorskip("greenlet")
    recorded = run(
        tmp_path,
        """
        import greenlet
        def worker(size, partner):
            inside(size)
            if partner:
                partner[0].switch()
            inside(size)
        def inside(size):
            take(size)  # @inside
        def deep(count):
            if count:
                return deep(count - 1)
            two.switch(2_000_003, [])
            take(700_001)  # @deep
        def main():
            global two
            two = greenlet.greenlet(worker)
            one = greenlet.greenlet(lambda: worker(1_000_003, [two_waiting]))
            two_waiting = greenlet.greenlet(lambda: take(500_009))  # @third
            one.switch()
            deep(20)
            take(300_007)  # @back
        """,
    )
    assert recorded.held("inside", at="end") == 1_000_003 + 2 * 2_000_003
    for stack in recorded.stacks("inside", "native", "end"):
        assert not stack.passes("deep"), "a greenlet does not stand on the stack that switched to it"
        assert [frame.function for frame in stack.frames[-2:]] == ["worker", "inside"]
    assert functions(recorded, "deep") == ["main"] + ["deep"] * 21
    assert functions(recorded, "back") == ["main"]
    assert recorded.held("third", at="end") == 500_009


def test_recursion_five_thousand_deep(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        def descend(depth):
            if depth == 0:
                take(1_000_003)  # @bottom
                return
            descend(depth - 1)  # @step
            if depth == 2_500:
                take(2_000_003)  # @middle
        def main():
            descend(5_000)
            take(3_000_017)  # @top
        """,
    )
    assert functions(recorded, "bottom") == ["main"] + ["descend"] * 5_001
    assert functions(recorded, "middle") == ["main"] + ["descend"] * 2_501
    assert functions(recorded, "top") == ["main"]
    assert recorded.held("bottom", at="end") == 1_000_003


def test_frames_that_return_and_are_entered_again(tmp_path: Path) -> None:
    """The same frame address, code and instruction under other callers: nothing of an earlier walk may be believed."""
    recorded = run(
        tmp_path,
        """
        def leaf(size):
            take(size)  # @leaf
        def by_a(size): leaf(size)
        def by_b(size): leaf(size)
        def by_c(size): by_a(size)
        def main():
            for turn in range(3_000):
                (by_a, by_b, by_c)[turn % 3]((100, 1_000, 10_000)[turn % 3])
        """,
    )
    found = {tuple(f.function for f in s.frames if f.kind == "python")[3:]: (s.bytes, s.blocks)
             for s in recorded.stacks("leaf", "native", "end")}  # fmt: skip
    assert found == {
        ("by_a", "leaf"): (100_000, 1_000),
        ("by_b", "leaf"): (1_000_000, 1_000),
        ("by_c", "by_a", "leaf"): (10_000_000, 1_000),
    }


def test_lines_within_one_function(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        def main():
            for _ in range(100):
                take(1_009)  # @one
                take(2_003)  # @two
                take(
                    3_001  # the call's own line is the first
                )
            several = (take(100_003),
                       take(200_003),
                       take(300_007))
        """,
    )
    assert (recorded.held("one", at="end"), recorded.held("two", at="end")) == (100_900, 200_300)
    by_line = {s.leaf.line: s.bytes for s in recorded.capture.stacks("end") if s.kind == "native" and s.leaf
               and s.leaf.function == "main" and s.bytes > 100_000}  # fmt: skip
    assert sorted(by_line.values()) == [100_003, 100_900, 200_003, 200_300, 300_007, 300_100]
    assert by_line[recorded.line("two") + 1] == 300_100


def test_a_line_beyond_sixteen_bits(tmp_path: Path) -> None:
    text = PRELUDE + "def main():\n" + "    pass\n" * 70_000 + "    take(1_000_003)  # @far\n"
    recorded = record(tmp_path, text, libraries=["heap"])
    assert recorded.line("far") > 70_000
    assert recorded.held("far", at="end") == 1_000_003


def test_lambdas_class_bodies_comprehensions_and_exec(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        def main():
            (lambda: take(1_000_003))()  # @lambda
            class Body:
                held = take(2_000_003)  # @body
                class Inner:
                    held = take(3_000_017)  # @inner
                def method(self):
                    take(4_000_037)  # @method
                @property
                def attribute(self):
                    take(500_009)  # @property
            Body().method()
            Body().attribute
            [take(600_011) for _ in range(3)]  # @list
            {take(700_001) for _ in range(2)}  # @set
            {number: take(800_011) for number in range(2)}  # @dict
            sum(take(900_001) * 0 for _ in range(2))  # @generator
            sorted([3, 1, 2], key=lambda number: take(110_017))  # @key
            namespace = {"take": take}
            exec(compile("def made(size):\\n    take(size)\\n\\nmade(1_234_577)\\n", "<made up>", "exec"), namespace)
            eval("take(7_654_321)", namespace)
        """,
    )
    sizes = {
        "lambda": 1_000_003, "body": 2_000_003, "inner": 3_000_017, "method": 4_000_037, "property": 500_009,
        "list": 1_800_033, "set": 1_400_002, "dict": 1_600_022, "generator": 1_800_002, "key": 330_051,
    }  # fmt: skip
    assert {name: recorded.held(name, at="end") for name in sizes} == sizes
    leaf = {name: recorded.stacks(name, "native", "end")[0].frames[-1].function for name in sizes}
    assert leaf["lambda"] == "main.<locals>.<lambda>"
    assert (leaf["body"], leaf["inner"]) == ("main.<locals>.Body", "main.<locals>.Body.Inner")
    assert leaf["method"] == "main.<locals>.Body.method"
    assert leaf["property"] == "main.<locals>.Body.attribute"
    made = {(f.function, f.file, f.line): s.bytes for s in recorded.capture.stacks("end") if s.kind == "native"
            for f in s.frames[-1:] if f.file in ("<made up>", "<string>")}  # fmt: skip
    assert made == {("made", "<made up>", 2): 1_234_577, ("<module>", "<string>", 1): 7_654_321}


def test_ten_thousand_functions_that_die(tmp_path: Path) -> None:
    """Each is compiled, allocates and is collected; the next one's code object lies where the last one's lay."""
    recorded = run(
        tmp_path,
        """
        def one(number):
            namespace = {"take": take}
            exec(f"def unique_{number}():\\n    take({10_000 + number})\\nunique_{number}()", namespace)
            return id(namespace[f"unique_{number}"].__code__)
        def main():
            print(len({one(number) for number in range(10_000)}))
        """,
    )
    assert int(recorded.stdout) < 5_000, "no code object's memory was used again: the test shows nothing"
    held = {s.leaf.function: (s.bytes, s.blocks) for s in recorded.capture.stacks("end")
            if s.kind == "native" and s.leaf and s.leaf.function.startswith("unique_")}  # fmt: skip
    assert held == {f"unique_{number}": (10_000 + number, 1) for number in range(10_000)}


def test_exceptions_unwind_and_handlers_allocate(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        def fail(depth):
            if depth:
                fail(depth - 1)
            take(1_000_003)  # @before
            raise ValueError
        def main():
            try:
                fail(50)
            except ValueError:
                take(2_000_003)  # @handler
            finally:
                take(3_000_017)  # @finally
        """,
    )
    assert functions(recorded, "before") == ["main"] + ["fail"] * 51
    assert functions(recorded, "handler") == functions(recorded, "finally") == ["main"]


def test_calls_from_c_into_python(tmp_path: Path) -> None:
    """map, functools.partial, __del__, __getattr__ and sort keys: frames entered from C stand on their callers."""
    recorded = run(
        tmp_path,
        """
        import functools
        def helper(size, more=0):
            take(size + more)  # @helper
        class Dying:
            def __del__(self):
                take(1_000_003)  # @dying
        class Asking:
            def __getattr__(self, name):
                take(2_000_003)  # @asking
                return None
        def drop():
            Dying()  # @drop
        def main():
            list(map(helper, [100_003, 200_003]))
            functools.partial(helper, more=7)(300_000)
            drop()
            Asking().anything
        """,
    )
    assert recorded.held("helper", at="end") == 600_013
    assert functions(recorded, "dying") == ["main", "drop", "Dying.__del__"]
    assert functions(recorded, "asking") == ["main", "Asking.__getattr__"]


SUB_INTERPRETER = {
    (3, 11): ("_xxsubinterpreters", "run_string", "create"),
    (3, 12): ("_xxsubinterpreters", "run_string", "create"),
    (3, 13): ("_interpreters", "run_string", "create"),
    (3, 14): ("_interpreters", "run_string", "create"),
    (3, 15): ("_interpreters", "run_string", "create"),
}


@pytest.mark.skipif(
    sys.version_info[:2] not in SUB_INTERPRETER, reason="how to make one is not written down for this version"
)
def test_a_sub_interpreter(tmp_path: Path) -> None:
    module, run_string, create = SUB_INTERPRETER[sys.version_info[:2]]
    recorded = run(
        tmp_path,
        f"""
        import {module} as interpreters
        SCRIPT = '''
        def fill():
            global kept
            kept = bytearray(5_000_011)
        fill()
        '''
        def main():
            other = interpreters.{create}()
            mine = bytearray(1_000_003)  # @before
            interpreters.{run_string}(other, SCRIPT.replace("\\n        ", "\\n"))
            also = bytearray(2_000_003)  # @after
            interpreters.destroy(other)
        """,
    )
    buffer_and_object = 5_000_012 + bytearray().__sizeof__()
    assert recorded.through("fill", "python") in range(buffer_and_object, buffer_and_object + 500)
    assert not any(s.passes("fill") and s.bytes > 1_000 for s in recorded.capture.stacks("end"))
    for name, size in (("before", 1_000_004), ("after", 2_000_004)):
        assert size <= recorded.held(name, "python") < size + 1_000


def test_nothing_of_ours_appears(tmp_path: Path) -> None:
    """No frame of the package, and neither the capture's own mapping nor its bookkeeping among what is listed."""
    recorded = run(
        tmp_path,
        """
        import threading
        import hiwater._core as core
        def main():
            global kept
            kept = [bytes(1_000) for _ in range(50_000)]
            core.counters(); core.self_check(); core.snapshot("copy.hiw")
            worker = threading.Thread(target=lambda: kept.extend(object() for _ in range(10_000)))
            worker.start()
            worker.join()
        """,
    )
    package = os.path.dirname(str(hiwater.__file__))
    for at in ("peak", "end"):
        for stack in recorded.capture.stacks(at):
            for frame in stack.frames:
                assert not frame.file.startswith(package), frame
                assert not frame.function.endswith(".hiw"), frame
                assert not frame.file.endswith(".hiw"), frame


RUN_BY_THE_COMMAND = """
import atexit
import os
import sys
import hiwater
import signatures
take = signatures.load("heap").take_malloc

def keep(size):
    take(size)  # @keep
def by_a(size): keep(size)  # @a
def by_b(size): keep(size)  # @b
def leave():
    keep(1_009)  # @leave_1
    keep(2_003)  # @leave_2
def explain(kind, error, trace):
    keep(4_007)  # @explain_1
    keep(8_009)  # @explain_2
    by_b(16_001)  # @explain_3
    by_b(32_003)  # @explain_4
def watch(frame, event, argument):
    if frame.f_code.co_name == "exit_status":  # of hiwater's: the program has ended
        sys.setprofile(None)
        keep(256_019)  # @watch_1
        keep(512_021)  # @watch_2

for turn in range(1_000):
    (by_a, by_b)[turn % 2](100 + turn % 2)  # @turn
of_ours = compile("def through(size): keep(size)", os.path.dirname(hiwater.__file__) + "/made_up.py", "exec")
exec(of_ours)
through(1_000_003)  # @through_1
through(2_000_003)  # @through_2
keep(64_007)  # @once
keep(128_021)  # @again
atexit.register(leave)
sys.excepthook = explain
sys.setprofile(watch)
raise SystemError  # what follows is called by what runs the program, where the program was
"""


@pytest.mark.parametrize("sample", [[], ["--sample", "512"]])
def test_a_program_run_by_the_command(tmp_path: Path, sample: list[str]) -> None:
    """The frames of what runs a program are below its own, and are not looked at while it runs; after it they run
    again."""
    compiled.library("heap")
    program, path = tmp_path / "program.py", tmp_path / "run.hiw"
    program.write_text(RUN_BY_THE_COMMAND)
    extensions = {"PYTHONPATH": str(EXTENSIONS)}
    done = run_hiwater("run", "-q", *sample, "-o", path, program, environment=extensions)
    assert done.returncode == 1, done.stderr
    recorded = Recorded(program, path, naive_reader.read(path), done.stdout, done.stderr)
    at = recorded.line
    found = {
        tuple((frame.function, frame.line) for frame in stack.frames if frame.file == str(program))[:-1]: stack.bytes
        for stack in recorded.stacks("keep", "native", "end")
    }
    expected = {
        (("<module>", at("turn")), ("by_a", at("a"))): 50_000,
        (("<module>", at("turn")), ("by_b", at("b"))): 50_500,
        (("<module>", at("through_1")),): 1_000_003,
        (("<module>", at("through_2")),): 2_000_003,
        (("<module>", at("once")),): 64_007,
        (("<module>", at("again")),): 128_021,
        (("explain", at("explain_1")),): 4_007,
        (("explain", at("explain_2")),): 8_009,
        (("explain", at("explain_3")), ("by_b", at("b"))): 16_001,
        (("explain", at("explain_4")), ("by_b", at("b"))): 32_003,
        (("watch", at("watch_1")),): 256_019,
        (("watch", at("watch_2")),): 512_021,
        (("leave", at("leave_1")),): 1_009,
        (("leave", at("leave_2")),): 2_003,
    }
    if sample:  # blocks far above the step are counted exactly, the others are sampled
        assert set(found) <= set(expected)
        large = {stack: size for stack, size in expected.items() if size > 8_000 and len(stack) == 1}
        assert {stack: found[stack] for stack in large} == large
    else:
        assert found == expected


def stacks_in_the_place_of_one_that_raised(
    folder: Path, size: str, calls: list[str], sample_bytes: int
) -> list[naive_reader.Stack]:
    """The stacks of blocks of a small frame, each made where a larger one was left by an exception. `size` is the text
    of each block's size, `calls` the lines that call `far_up`."""
    recorded = run(
        folder,
        f"""
        raised, kept = ValueError(), dict.fromkeys(range(8_000))
        def leaf(size):
            kept[size] = bytearray({size})  # @leaf
            raise raised
        def large(a, b, c, d, e, f, size):
            return a, b, c, d, e, f, leaf(size)
        def small(size):
            kept[size] = bytearray({size})  # @small
        def middle(size):
            if size % 2:
                large(1, 2, 3, 4, 5, 6, size)
            else:
                small(size)  # @middle
        def outer(size):
            try:
                middle(size)
            except ValueError:
                middle(size + 1)  # @outer
        def far_up(depth, size):
            if depth:
                far_up(depth - 1, size)
            else:
                outer(size)
        def main():
            {(chr(10) + " " * 12).join(calls)}
        """,
        sample_bytes,
    )
    stacks = recorded.stacks("small", "python", "end")
    lines = {(recorded.line("outer"), recorded.line("middle"))}
    assert {tuple(frame.line for frame in stack.frames[-3:-1]) for stack in stacks} == lines
    return stacks


def test_a_frame_in_the_place_of_one_that_raised_is_another(tmp_path: Path) -> None:
    """The larger one was left by an exception, so nothing was written over what marked it as not having run. Nothing is
    looked at before the smaller one allocates: such small objects are hardly ever in a sample."""
    calls = ["far_up(40, 1_000_001)", "far_up(40, 2_000_001)"]
    stacks = stacks_in_the_place_of_one_that_raised(tmp_path, "size", calls, sample_bytes=1 << 18)
    header = 32 if sys.version_info >= (3, 15) else 0  # of the bytes object that a bytearray has there
    assert sum(stack.bytes for stack in stacks) == 1_000_003 + 2_000_003 + 2 * header


def test_a_frame_in_the_place_of_one_whose_traceback_was_sampled_is_another(tmp_path: Path) -> None:
    """As above, but in about one of 20 rounds the last sample before is the traceback of the larger frame, which is on
    top then and still marked."""
    calls = ["for size in range(1, 4001, 2): far_up(40, size); raised.__traceback__ = None"]
    stacks = stacks_in_the_place_of_one_that_raised(tmp_path, "20_000", calls, sample_bytes=1 << 10)
    assert sum(stack.bytes for stack in stacks) >= 2_000 * 20_000


@pytest.mark.parametrize("sample_bytes", [0, 1 << 18])
def test_a_deep_stack_grows_unseen(tmp_path: Path, sample_bytes: int) -> None:
    """Between two recorded blocks hundreds of frames were added to others, which lie where others lay before, and were
    called by another line. They are so small that the interpreter seldom maps room for more, which is recorded, too."""
    recorded = run(
        tmp_path,
        """
        kept, sizes = [], [8_000_000, 4_000_000, 2_000_000, 1_000_000]
        def take():
            kept.append(bytearray(sizes.pop()))  # @take
        down = lambda n: down(n - 1) if n else take()
        def main():
            down(300)  # @few
            down(900)  # @many
            down(1_500)  # @more
            down(20)  # @fewest
        """,
        sample_bytes=sample_bytes,
    )
    found = {
        next(frame.line for frame in stack.frames if frame.function == "main"): (
            [frame.function for frame in stack.frames].count("<lambda>"),
            round(stack.bytes / 1_000_000),
        )
        for stack in recorded.stacks("take", "python", "end")
        if stack.bytes > 500_000
    }
    at = recorded.line
    assert found == {at("few"): (301, 1), at("many"): (901, 2), at("more"): (1_501, 4), at("fewest"): (21, 8)}


@pytest.mark.parametrize("sample_bytes", [0, 4096])
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_calls_of_every_kind_far_up_a_deep_stack(tmp_path: Path, seed: int, sample_bytes: int) -> None:
    """Deep stacks are not compared to their end: whatever a call may do, what is left out has not changed. Where small
    blocks are sampled, much happens between two looks at a stack.
    """
    (tmp_path / "seed").write_text(str(seed))
    program = (PROGRAMS / "calls_of_every_kind.py").read_text()
    recorded = record(tmp_path, program, libraries=["heap"], sample_bytes=sample_bytes)
    found: Counter[tuple[tuple[str, int], ...]] = Counter()
    for stack in recorded.capture.stacks("end"):
        path = [(frame.function, frame.line) for frame in stack.frames]
        names = [name for name, _ in path]
        if stack.kind == "native" and "go_the_way" in names:
            found[tuple(path[names.index("go_the_way") + 1 :])] += stack.bytes
    expected = {
        tuple((name, line) for name, line in path): size
        for path, size in json.loads((tmp_path / "expected.json").read_text())
    }
    assert max(map(len, expected)) > 30
    assert len(expected) > 300
    assert dict(found) == expected
