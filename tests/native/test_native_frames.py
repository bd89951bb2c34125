"""Native frames in stacks: `hiwater run --native`, and how reports show them."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import compiled
import hiwater
from children import run_hiwater
from hiwater.analysis.symbols.naming import FunctionNames
from hiwater.capture.native_frames import Frames
from native_recordings import HEAD, native_part, record, recorded_with_a_copy, stacks
from recording import child_environment, needs_engine

pytestmark = needs_engine


def test_the_functions_of_a_library_are_below_the_line_that_called_it(tmp_path: Path) -> None:
    path = record(tmp_path, """
        def work():
            native.first(10_007)
            native.many(20_008)
            native.aligned(100, 30_011)
            native.after_exception(40_013)
            native.after_jump(50_021)
        work()
    """, "--native")  # fmt: skip
    chain = ["first", "second", "third", "shapes::take(unsigned long)"]
    (found,) = stacks(path, 10_007)
    assert native_part(found) == chain
    assert found[:2] == ["<module>", "work"]
    (found,) = stacks(path, 20_008)
    assert native_part(found) == ["many", "long* shapes::take_many<long>(unsigned long)", chain[-1]]
    (found,) = stacks(path, 30_011)
    shapes = ["shapes::realigned(unsigned long, unsigned long)", "shapes::fixed_by_size(unsigned long, unsigned long)"]
    assert native_part(found) == ["aligned", *shapes, chain[-1]]
    assert native_part(stacks(path, 40_013)[0]) == ["after_exception", *chain]
    assert native_part(stacks(path, 50_021)[0]) == ["after_jump", *chain]


def test_native_frames_end_at_the_innermost_python_frame(tmp_path: Path) -> None:
    path = record(tmp_path, """
        def inner():
            native.first(10_007)
        back = ctypes.CFUNCTYPE(None)(inner)
        def outer():
            native.call_back(back)
        outer()
    """, "--native")  # fmt: skip
    (found,) = stacks(path, 10_007)
    assert found[:3] == ["<module>", "outer", "inner"]
    assert "call_back" not in found
    assert native_part(found)[0] == "first"


def test_python_and_native_functions_that_call_each_other(tmp_path: Path) -> None:
    """Each allocation has the native frames of its own innermost call, before, in and after the call of Python."""
    path = record(tmp_path, """
        call = ctypes.CFUNCTYPE(None)
        def level(left):
            native.first(10_007 * (1 << left))
            if left:
                native.around(100_003 * (1 << left), call(lambda: level(left - 1)))
        level(3)
    """, "--native")  # fmt: skip
    take = "shapes::take(unsigned long)"
    for left in range(4):
        python = ["<module>", "level", *["level.<locals>.<lambda>", "level"] * (3 - left)]
        (found,) = stacks(path, 10_007 * (1 << left))
        assert found[: len(python)] == python and native_part(found) == ["first", "second", "third", take]
        if left:
            around = stacks(path, 100_003 * (1 << left))
            assert len(around) == 2  # two calls of take()
            assert all(one[: len(python)] == python and one[-2:] == ["around", take] for one in around)


def test_a_native_thread_is_followed_to_its_first_function(tmp_path: Path) -> None:
    path = record(tmp_path, "native.in_thread(10_007)\n", "--native")
    (found,) = stacks(path, 10_007)
    assert native_part(found)[-4:] == ["first", "second", "third", "shapes::take(unsigned long)"]
    assert "[unknown frames]" not in found
    assert found[0] == "<module>"  # that started the thread


def test_every_walk_finds_what_the_compilers_own_unwinder_finds(tmp_path: Path) -> None:
    record(tmp_path, """
        import json, threading
        import hiwater._core as core
        def work():
            native.wander(3_000, 24)
            kept = [json.dumps({"a": [number, {"b": [1.5]}]}) for number in range(4_000)]
            kept += [sorted(map(str, range(20)), key=lambda text: (text,)) for _ in range(1_000)]
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        work()
        for thread in threads: thread.join()
        print({name: value for name, value in core.counters().items() if name.startswith("native_")})
    """, "--native", environment={"HIWATER_CHECK_UNWIND": "1"})  # fmt: skip
    counters = eval((tmp_path / "out").read_text())
    assert counters["native_checked"] == counters["native_walks"] > 100_000
    assert counters["native_mismatches"] == 0
    assert counters["native_unknown"] == counters["native_cut"] == 0


def test_reports_show_python_frames_unless_asked(tmp_path: Path) -> None:
    """What a line has is the same with and without native frames."""
    program = """
        def work():
            native.first(10_007)
            native.many(20_008)
            return [str(number) * 50 for number in range(2_000)]
        kept = work()
    """

    def lines(*options: str) -> dict[tuple[str, ...], tuple[int, int]]:
        capture = hiwater.open(record(tmp_path, program, *options))
        stacks = [one for one in capture.end.stacks if one.frames and one.frames[-1].function == "work"]
        return {tuple(map(str, one.frames)): (one.bytes, one.blocks) for one in stacks}

    plain, native = lines(), lines("--native")
    assert plain.keys() == native.keys()
    for stack, (held, blocks) in plain.items():
        assert native[stack][1] == pytest.approx(blocks, abs=20)
        assert native[stack][0] == pytest.approx(held, abs=20_000)


@pytest.mark.once
def test_a_report_names_the_libraries(tmp_path: Path) -> None:
    path = record(tmp_path, "kept = [native.first(3_000_000), native.many(2_000_000)]\n", "--native")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def report(*options: str) -> str:
        return run_hiwater("report", path, "--at", "end", *options, environment=environment, check=True).stdout

    assert "native_frames.so)" not in report("--format", "tree")
    mixed = report("--frames", "mixed", "--format", "tree")
    assert re.search(r"shapes::take\(unsigned long\) \(.*native_frames.cpp:\d+\)", mixed) and "program.py:3" in mixed
    alone = report("--frames", "native", "--format", "tree")
    assert "second" in alone and "program.py:3" not in alone
    files = json.loads(report("--frames", "native", "--by", "module", "--format", "json"))
    assert "native_frames.so" in json.dumps(files)
    report("--frames", "mixed", "--format", "html", "-o", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_a_recording_without_native_frames_says_so(tmp_path: Path) -> None:
    path = record(tmp_path, "native.first(10_007)\n")
    done = run_hiwater("report", path, "--frames", "mixed")
    assert done.returncode == 2
    assert "no native frames were recorded" in done.stderr


def test_readers_of_the_former_version_refuse_native_frames(tmp_path: Path) -> None:
    versions = [
        int.from_bytes(record(tmp_path, "native.first(10_007)\n", *options).read_bytes()[8:12], "little")
        for options in ((), ("--native",))
    ]
    assert versions == [3, 5]


def test_sampled_recordings_and_children_have_native_frames(tmp_path: Path) -> None:
    path = record(tmp_path, """
        import os, subprocess
        native.first(100_007)
        if len(sys.argv) == 2:
            child = os.fork()
            if child == 0:
                native.first(300_017)
                os._exit(0)
            os.waitpid(child, 0)
            subprocess.run([sys.executable, __file__, sys.argv[1], "child"], check=True)
    """, "--native", "--sample", "64KiB")  # fmt: skip
    assert native_part(stacks(path, 100_007)[0])[:3] == ["first", "second", "third"]
    run = hiwater.open_run(path)
    assert len(run.captures) == 3
    for capture in run.captures:
        capture.show_frames(Frames.mixed, FunctionNames(tmp_path / "cache").of)
        held = [one for one in capture.end.stacks if one.bytes in (100_007, 300_017)]
        assert held and all("third" in [frame.function for frame in one.frames] for one in held)


@pytest.mark.once
def test_a_file_that_is_another_now_gives_no_names(tmp_path: Path) -> None:
    library, path = recorded_with_a_copy(tmp_path)
    shutil.copy(compiled.library("objects"), library)
    names = FunctionNames(tmp_path / "fresh")
    capture = hiwater.open(path)
    capture.show_frames(Frames.mixed, names.of)
    (found,) = [one for one in capture.end.stacks if one.bytes == 10_007]
    assert [frame.function for frame in found.frames][-1].startswith("copy.so+0x")
    assert str(library) in names.remarks()[0]
    assert "changed since the recording" in names.remarks()[0]


@pytest.mark.once
def test_names_that_were_found_once_outlive_the_file(tmp_path: Path) -> None:
    library, path = recorded_with_a_copy(tmp_path)
    before = stacks(path, 10_007)
    library.unlink()
    assert stacks(path, 10_007) == before
    (found,) = stacks(path, 10_007, cache=tmp_path / "empty")
    assert found[-1].startswith("copy.so+0x")


def compile_in_one_place(folder: Path, rooms: Mapping[str, int], *options: str) -> None:
    """Libraries of one size, whose function calls another one, which has so many bytes on its stack. Their instructions
    have the same addresses. With `-DFAREWELL` they allocate in their destructors, too."""
    (folder / "one.c").write_text("""#include <stdlib.h>
        volatile int after;
        __attribute__((noinline)) void* NAME(size_t bytes) { char room[SIZE]; __asm__("" :: "r"(room) : "memory");
            void* block = malloc(bytes); after = 1; return block; }
        void* enter(size_t bytes) { void* block = NAME(bytes); after = 2; return block; }
    #ifdef FAREWELL
        __attribute__((destructor)) static void end(void) { enter(20); }
    #endif
    """)
    for name, size in rooms.items():
        command = [*compiled.C, *options, f"-DNAME={name}", f"-DSIZE={size}", "one.c", "-o", f"{name}.so"]
        subprocess.run(command, cwd=folder, check=True)


def innermost(path: Path) -> Counter[tuple[str, ...]]:
    """What the two innermost functions hold at the end."""
    capture = hiwater.open(path)
    capture.show_frames(Frames.mixed, FunctionNames(path.parent / "cache").of)
    held = Counter[tuple[str, ...]]()
    for one in capture.end.stacks:
        held[tuple(frame.function for frame in one.frames[-2:])] += one.bytes
    return held


@pytest.mark.parametrize("room", [4000, 400])
def test_another_library_in_the_place_of_one_that_was_unloaded(tmp_path: Path, room: int) -> None:
    """It has other rules, or the same ones."""
    compile_in_one_place(tmp_path, {"before": 400, "behind": room}, "-DFAREWELL")
    path = record(tmp_path, """
        import _ctypes
        places = set()
        for number, name in enumerate(["before", "behind"] * 3):
            library = ctypes.CDLL(f"./{name}.so")
            places.add(ctypes.cast(library.enter, ctypes.c_void_p).value >> 12)
            for _ in range(4):
                library.enter(10_000 + number)
            _ctypes.dlclose(library._handle)
        print(len(places))
    """, "--native")  # fmt: skip
    assert int((tmp_path / "out").read_text()) == 1  # they were in one place, one after the other
    held = innermost(path)
    assert held["enter", "before"] == 4 * (10_000 + 10_002 + 10_004) + 3 * 20
    assert held["enter", "behind"] == 4 * (10_001 + 10_003 + 10_005) + 3 * 20


def test_what_is_known_of_walks_is_void_once_a_library_was_unloaded(tmp_path: Path) -> None:
    """From some round on all else that the program does is known."""
    compile_in_one_place(tmp_path, {"before": 400, "behind": 400})
    path = record(tmp_path, """
        import _ctypes
        names, places, enter = ("./before.so", "./behind.so"), set(), None
        for number in range(60):
            library = _ctypes.dlopen(names[number % 2], 2)
            place = _ctypes.dlsym(library, "enter")
            places.add(place)
            enter = enter or ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(place)
            for _ in range(4):
                enter(10_007)
            _ctypes.dlclose(library)
        print(len(places))
    """, "--native")  # fmt: skip
    assert int((tmp_path / "out").read_text()) == 1
    held = innermost(path)
    assert held["enter", "before"] == held["enter", "behind"] == 30 * 4 * 10_007


@pytest.mark.once
def test_another_file_at_the_path_of_one_that_was_unloaded(tmp_path: Path) -> None:
    compile_in_one_place(tmp_path, {"before": 400, "behind": 4000})
    path = record(tmp_path, """
        import _ctypes, os
        for name in ("before", "behind"):
            os.replace(f"{name}.so", "one.so")
            library = ctypes.CDLL("./one.so")
            library.enter(10_007)
            _ctypes.dlclose(library._handle)
    """, "--native")  # fmt: skip
    held = innermost(path)
    assert held["enter", "behind"] == 10_007
    assert sum(bytes_ for names, bytes_ in held.items() if names[-1].startswith("one.so+0x")) == 10_007


def test_recording_with_record(tmp_path: Path) -> None:
    program = """
        import hiwater
        with hiwater.record("inner.hiw", native=True):
            native.first(10_007)
    """
    (tmp_path / "program.py").write_text(HEAD + textwrap.dedent(program))
    subprocess.run(
        [sys.executable, "program.py", compiled.library("native_frames")], cwd=tmp_path, check=True, timeout=300,
        env={**os.environ, **child_environment()},
    )  # fmt: skip
    assert native_part(stacks(tmp_path / "inner.hiw", 10_007)[0])[0] == "first"


@pytest.mark.once
def test_diff_and_leaks_show_native_frames_on_request(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = record(tmp_path / "plain", "native.first(10_007)\n")
    before = record(tmp_path, "native.first(10_007)\n", "--native").rename(tmp_path / "before.hiw")
    after = record(tmp_path, """
        import hiwater
        kept = []
        for number in range(40):
            kept.append(native.first(100_000))
            hiwater.mark("round")
    """, "--native")  # fmt: skip

    def shown(*words: str) -> subprocess.CompletedProcess[str]:
        return run_hiwater(*words, environment={"XDG_CACHE_HOME": str(tmp_path / "cache")})

    for words in (["diff", str(before), str(after)], ["leaks", str(after)]):
        assert "shapes::take" not in shown(*words).stdout
        assert "shapes::take(unsigned long)" in shown(*words, "--frames", "mixed").stdout, words
    refused = shown("diff", str(plain), str(after), "--frames", "native")
    assert refused.returncode == 2 and repr(str(plain)) in refused.stderr
