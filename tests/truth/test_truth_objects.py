"""Python objects, held against tracemalloc: the same program twice, in two processes, once under each."""

import dataclasses
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from naive_reader import Stack
from recording import child_environment, needs_engine, record
from traced_programs import PROGRAMS, by_line, lines_that_differ, text_of, under_tracemalloc

pytestmark = needs_engine

# CPython's map of arenas takes a block of this size where the heap crosses a border of 16 GiB: chance, in one of a
# hundred runs. The same stack may have grown the table of arenas, which has 48 bytes for each. tracemalloc does not
# trace what pymalloc asks for itself.
ARENA_MAP_BYTES = 131_072
ARENA_TABLE_BYTES = 8_192


def without_arena_map(stacks: list[Stack]) -> list[Stack]:
    """The stacks less that block. None of the programs asks for a native block of its size."""

    def holds_map(stack: Stack) -> bool:
        return stack.kind == "native" and 0 <= stack.bytes - ARENA_MAP_BYTES < ARENA_TABLE_BYTES

    return [
        dataclasses.replace(s, bytes=s.bytes - ARENA_MAP_BYTES, blocks=s.blocks - 1) if holds_map(s) else s
        for s in stacks
    ]


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_objects_agree_with_tracemalloc(tmp_path: Path, name: str) -> None:
    theirs = under_tracemalloc(tmp_path / "theirs", text_of(name))
    (tmp_path / "ours").mkdir()
    recorded = record(tmp_path / "ours", text_of(name))
    at_peak = without_arena_map(recorded.capture.stacks("peak"))
    ours_peak = sum(s.bytes for s in at_peak if s.kind in ("python", "native"))
    assert ours_peak == pytest.approx(theirs["peak"], rel=0.002)
    ours = by_line(recorded, without_arena_map(recorded.capture.stacks("end")))
    assert lines_that_differ(ours, theirs["lines"]) == {}


ALLOCATORS = ["default", "pymalloc", "malloc", "debug", "pymalloc_debug", "malloc_debug", "-X dev"]
if sys.version_info >= (3, 13) and sysconfig.get_config_var("WITH_MIMALLOC"):
    ALLOCATORS += ["mimalloc", "mimalloc_debug"]


def allocator_environment(allocator: str) -> dict[str, str]:
    return {"PYTHONDEVMODE": "1"} if allocator == "-X dev" else {"PYTHONMALLOC": allocator}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_program_says_the_same_with_every_python_allocator(tmp_path: Path, allocator: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, re\n"
        "table = {str(number): [number] * 50 for number in range(5_000)}\n"
        "text = json.dumps(table)\n"
        "assert json.loads(text) == table\n"
        "print(len(text), hash(len(re.sub('1', '', text))))\n"
        "raise SystemExit(7)\n"
    )
    environment = child_environment(allocator_environment(allocator))
    plain, recorded = (
        subprocess.run(
            [sys.executable, *words, program],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=environment,
        )
        for words in ((), ("-m", "hiwater", "run", "-q"))
    )  # fmt: skip
    assert plain.returncode == 7
    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (7, plain.stdout, plain.stderr)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_python_allocator(tmp_path: Path, allocator: str) -> None:
    """What is asked for is the same whichever allocator answers, and none of it is counted a second time as native."""
    recorded = record(
        tmp_path,
        """
        def main():
            global kept
            large = [bytearray(1_000_003) for _ in range(5)]  # @large
            small = [bytes(100) for _ in range(10_000)]  # @small
            resized = bytearray(10)  # @resized_before
            resized.extend(bytes(2_000_003))  # @resized
            for _ in range(100):
                gone = bytearray(3_000_017)  # @gone
            del gone
            kept = large, small, resized
        """,
        environment=allocator_environment(allocator),
    )
    assert 5 * 1_000_004 <= recorded.held("large", "python", "end") <= 5 * 1_000_004 + 2_000
    objects = 10_000 * (bytes(100).__sizeof__())
    assert objects <= recorded.held("small", "python", "end") <= objects + 8 * 10_000 * 9 // 8 + 10_000
    assert 2_000_013 <= recorded.held("resized", "python", "end") <= 2_400_000
    assert recorded.held("gone", "python", "end") < 1_000
    # Each new one is made before the name lets go of the last.
    assert recorded.held("gone", "python", "peak") in range(2 * 3_000_018, 2 * 3_000_018 + 2_000)
    for name in ("large", "small", "resized", "gone"):
        assert recorded.held(name, "native", "end") < 1_000, "an object's memory is counted as native too"
        # A JIT takes a few pages there; an allocator would take megabytes.
        assert recorded.held(name, "mapping", "end") < 100_000, "nor are the allocator's own mappings"


RESIZED = """
    import random, sys

    def main():
        draw = random.Random(7)
        from_before = [[] for _ in range(100)]  # the interpreter keeps some that are not used
        arrays = [bytearray(draw.choice((0, 1, 16, 100, 511, 2_000))) for _ in range(300)]  # @array
        lists = [[] for _ in range(300)]  # @list
        for step in range(40_000):
            array, items = arrays[step % 300], lists[step % 300]
            if draw.random() < 0.5:
                array.extend(b"x" * draw.choice((1, 15, 64, 500)))  # @longer_array
                items.extend((None,) * draw.choice((1, 3, 30)))  # @longer_list
            else:
                del array[draw.randrange(len(array) + 1):]  # @shorter_array
                del items[draw.randrange(len(items) + 1):]  # @shorter_list
        global kept
        kept = arrays, lists
        print(*(sum(map(sys.getsizeof, [*each, each])) for each in kept))
    """


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_what_was_resized_at_random_has_its_last_size(tmp_path: Path, allocator: str) -> None:
    recorded = record(tmp_path, RESIZED, environment=allocator_environment(allocator))
    for name, size in zip(("array", "list"), map(int, recorded.stdout.split()), strict=True):
        lines = (name, f"longer_{name}", f"shorter_{name}")
        assert sum(recorded.held(line, "python", "end") for line in lines) == size
        assert all(recorded.held(line, "native", "end") == 0 for line in lines)


@pytest.mark.parametrize("allocator", ["default", "malloc", "debug"])
def test_what_could_not_be_resized_has_the_size_it_had(tmp_path: Path, allocator: str) -> None:
    recorded = record(
        tmp_path,
        """
        import resource, sys

        def main():
            global kept
            from_before = [[] for _ in range(100)]  # the interpreter keeps some that are not used
            arrays = [bytearray(8) for _ in range(20_000)]  # @array
            pages = int(open("/proc/self/statm").read().split()[0])
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3_000_000, hard))
            refused = 0
            for size in (40, 100, 200, 300, 400, 500):
                for array in arrays:
                    try:
                        array.extend(bytes(size - len(array)))  # @longer
                    except MemoryError:
                        refused += 1
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            kept = arrays
            print(refused, sum(map(sys.getsizeof, [*arrays, arrays])))
        """,
        environment=allocator_environment(allocator),
    )
    refused, size = map(int, recorded.stdout.split())
    assert refused > 1_000
    assert sum(recorded.held(line, "python", "end") for line in ("array", "longer")) == size


def test_objects_older_than_the_recording_can_die_in_it(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        def before():
            global older
            older = [[number, str(number)] for number in range(100_000)]
        def main():
            global older, newer
            older.extend([1.5] * 50_000)  # @grown
            del older
            newer = [str(number) for number in range(50_000)]  # @newer
        """,
    )
    assert recorded.capture.header["live_blocks"] > 50_000
    assert all(s.bytes >= 0 and s.blocks >= 0 for s in recorded.capture.stacks("end"))
    assert recorded.held("newer", "python", "end") >= 50_000 * 50


def test_objects_of_the_recording_can_outlive_it(tmp_path: Path) -> None:
    """The allocator is put back while a million of its blocks are alive: they are freed and resized by the old one."""
    recorded = record(
        tmp_path,
        """
        def main():
            global kept
            kept = [[number] for number in range(200_000)]
        def after():
            for entry in kept:
                entry.extend(range(10))
            kept.clear()
            print("well")
        """,
    )
    assert recorded.stdout == "well\n"
