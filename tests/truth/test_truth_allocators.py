"""Allocators other than the C library's — jemalloc, mimalloc, tcmalloc — preloaded, linked against, or an
interpreter's own: each block is found once, with exactly its bytes, and what the allocator maps for its arenas is no
allocation of the program's."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import compiled
import heap_blocks
import hiwater
from children import run_hiwater
from places import EXTENSIONS
from recording import child_environment, needs_engine, record

pytestmark = needs_engine

FILES = {"jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}


def preloaded(name: str) -> dict[str, str]:
    if ctypes.util.find_library(FILES[name].removeprefix("lib").partition(".")[0]) is None:
        pytest.skip(f"{FILES[name]} is not installed here")
    return {"LD_PRELOAD": FILES[name]}


LOAD = """
import signatures
doors = signatures.load("doors")
heap = signatures.load("heap")
"""
LARGE_AND_MANY = (
    LOAD
    + """
def main():
    large = {one}(100 << 20)  # @large
    many = doors.take_many(100_000, 1_000, {by_new})  # @many
    doors.give_back_many(many, {by_new})
    {back}(large)
"""
)
TRUE_PEAK = (100 << 20) + 100_000 * 1_000


@pytest.mark.parametrize("sample_bytes", [0, 65_536], ids=["exact", "sampled"])
@pytest.mark.parametrize("by", ["malloc", "new"])
@pytest.mark.parametrize("allocator", FILES)
def test_the_peak_is_what_the_program_asked_for(tmp_path: Path, allocator: str, by: str, sample_bytes: int) -> None:
    calls = {"malloc": ("heap.take_malloc", "heap.give_back", 0), "new": ("doors.take_new", "doors.give_back_new", 1)}
    one, back, by_new = calls[by]
    recorded = record(
        tmp_path,
        LARGE_AND_MANY.format(one=one, back=back, by_new=by_new),
        libraries=["heap", "doors"],
        environment=preloaded(allocator),
        sample_bytes=sample_bytes,
    )
    capture = hiwater.open(recorded.path)
    # The smaller ones are 95 MiB in sampled blocks of a thousand bytes: a standard error of 0.8 of a percent of those.
    allowed = 0.01 if sample_bytes == 0 else 4 * (100_000 * 1_000 * 65_536) ** 0.5 / TRUE_PEAK
    peak = sum(capture.peak.kind_bytes()[kind] for kind in ("python", "native", "mapping"))
    assert peak == pytest.approx(TRUE_PEAK, rel=allowed)
    if sample_bytes == 0:
        assert recorded.held("large") == 100 << 20
        assert recorded.held("many") == 100_000 * 1_000
    assert recorded.held("large", kind=None, at="end") == 0
    assert recorded.held("many", kind=None, at="end") == 0
    assert not [stack for stack in recorded.capture.stacks("peak") if stack.kind in ("mapping", "reserved")]


SHRUNK = """
import ctypes
from hiwater import _core as core

def shrunk():
    block = bytearray(1_000)
    del block[5:]  # the 6 bytes that are left stay with malloc
    return block

def main():
    blocks = [shrunk() for _ in range(2_000)]
    is_odd = [ctypes.addressof(ctypes.c_char.from_buffer(block)) % 16 == 8 for block in blocks]
    few = sum(is_odd)
    before = core.counters()
    for number in range(2_000):
        if is_odd[number]:
            blocks[number] = None
    after = core.counters()
    freed = before["live_blocks"] - after["live_blocks"]
    assert few > 500 and 2 * few - 100 < freed < 2 * few + 100, (few, freed)
"""


@pytest.mark.parametrize("allocator", FILES)
def test_neighbours_of_eight_bytes_are_told_apart(tmp_path: Path, allocator: str) -> None:
    """Of those that lie in one stretch of 16 bytes, the free of one leaves the other."""
    record(tmp_path, SHRUNK, environment=preloaded(allocator))


COMMON_DOORS = (
    heap_blocks.CALLS
    + """
    kept += [
        doors.take_new(1_000_003),  # @new
        doors.take_new_array(1_000_007),  # @new_array
        doors.take_new_nothrow(1_000_009),  # @new_nothrow
        doors.take_aligned_new(64, 1_000_015),  # @aligned_new
        doors.take_aligned_new_nothrow(64, 1_000_017),  # @aligned_new_nothrow
    ]
    for _ in range(1_000):
        doors.take_new(8)  # @tiny
    doors.give_back_new(doors.take_new(777_777))  # @gone_new
    doors.give_back_new_array(doors.take_new_array(777_777))  # @gone_new_array
    doors.give_back_new_sized(doors.take_new(777_777), 777_777)  # @gone_new_sized
    doors.give_back_aligned_new(doors.take_aligned_new(64, 777_777), 64)  # @gone_aligned_new
"""
)
COMMON = heap_blocks.BLOCKS | {
    "new": (1_000_003, 1),
    "new_array": (1_000_007, 1),
    "new_nothrow": (1_000_009, 1),
    "aligned_new": (1_000_015, 1),
    "aligned_new_nothrow": (1_000_017, 1),
    "tiny": (8_000, 1_000),
    **{f"gone{how}": (0, 0) for how in ("", "_new", "_new_array", "_new_sized", "_aligned_new")},
}
OWN_DOORS = {
    "jemalloc": """
    assert doors.refused_new() == 1
    kept += [
        doors.take_mallocx(1_000_003),  # @mallocx
        doors.take_rallocx(doors.take_mallocx(999), 1_000_007),  # @rallocx
    ]
    doors.give_back_dallocx(doors.take_mallocx(1_000_003))  # @dallocx
    doors.give_back_sdallocx(doors.take_mallocx(1_000_003), 1_000_003)  # @sdallocx
    block = doors.take_mallocx(1_000_003)  # @xallocx
    assert doors.grow_xallocx(block, 1_000_005, 0) >= 1_000_005  # @grown
    """,
    "mimalloc": """
    kept += [
        doors.take_mi_malloc(1_000_003),  # @mi_malloc
        doors.take_mi_calloc(1_009, 1_013),  # @mi_calloc
        doors.take_mi_realloc(doors.take_mi_malloc(999), 1_000_007),  # @mi_realloc
        doors.take_mi_new(1_000_009),  # @mi_new
    ]
    doors.give_back_mi_free(doors.take_mi_malloc(1_000_003))  # @mi_free
    """,
    "tcmalloc": """
    assert doors.refused_new() == 1
    kept += [
        doors.take_tc_malloc(1_000_003),  # @tc_malloc
        doors.take_tc_realloc(doors.take_tc_malloc(999), 1_000_007),  # @tc_realloc
        doors.take_tc_new(1_000_009),  # @tc_new
    ]
    doors.give_back_tc_free(doors.take_tc_malloc(1_000_003))  # @tc_free
    doors.give_back_tc_delete_sized(doors.take_tc_new(1_000_003), 1_000_003)  # @tc_delete_sized
    """,
}
OWN = {
    "jemalloc": {
        "mallocx": (1_000_003, 1), "rallocx": (1_000_007, 1), "dallocx": (0, 0), "sdallocx": (0, 0),
        "xallocx": (0, 0), "grown": (1_000_005, 1),
    },
    "mimalloc": {
        "mi_malloc": (1_000_003, 1), "mi_calloc": (1_009 * 1_013, 1), "mi_realloc": (1_000_007, 1),
        "mi_new": (1_000_009, 1), "mi_free": (0, 0),
    },
    "tcmalloc": {
        "tc_malloc": (1_000_003, 1), "tc_realloc": (1_000_007, 1), "tc_new": (1_000_009, 1), "tc_free": (0, 0),
        "tc_delete_sized": (0, 0),
    },
}  # fmt: skip


@pytest.mark.parametrize("moment", ["loaded before", "loaded while recording"])
@pytest.mark.parametrize("allocator", FILES)
def test_every_door_of_an_allocator(tmp_path: Path, allocator: str, moment: str) -> None:
    load = 'doors, heap = signatures.load("doors"), signatures.load("heap")'
    early, late = (load, "pass") if moment == "loaded before" else ("", f"global doors, heap; {load}")
    text = f"import signatures\n{early}\ndef main():\n    {late}\n{COMMON_DOORS}{OWN_DOORS[allocator]}"
    recorded = record(tmp_path, text, libraries=["heap", "doors"], environment=preloaded(allocator))
    for name, (size, blocks) in (COMMON | OWN[allocator]).items():
        assert (recorded.held(name, at="end"), recorded.blocks(name, at="end")) == (size, blocks), name
        assert recorded.held(name, kind="mapping", at="end") == 0, name


@pytest.mark.parametrize("python_malloc", ["pymalloc", "malloc"])
@pytest.mark.parametrize("allocator", FILES)
def test_blocks_of_eight_bytes_are_told_apart(tmp_path: Path, allocator: str, python_malloc: str) -> None:
    """Two of them lie in sixteen bytes, where glibc has one block."""
    recorded = record(
        tmp_path,
        LOAD
        + """
import ctypes
take, give, again = [
    ctypes.cast(getattr(ctypes.pythonapi, f"PyMem_{name}"), ctypes.c_void_p).value
    for name in ("Malloc", "Free", "Realloc")
]
with_gil = ctypes.PyDLL(doors._name)
for name, words in {"take_all_by": 3, "resize_all_by": 3, "give_all_back_by": 2}.items():
    getattr(with_gil, name).argtypes = [ctypes.c_size_t] * words
def main():
    global kept, freed
    kept = [heap.take_malloc(5) for _ in range(10_000)]  # @kept
    freed = [heap.take_malloc(7) for _ in range(10_000)]  # @freed
    for block in freed:
        heap.give_back(block)
    with_gil.take_all_by(take, 10_000, 3)  # @python_grown
    with_gil.resize_all_by(again, 10_000, 8)  # @python
    with_gil.give_all_back_by(give, 5_000)
""",
        libraries=["heap", "doors"],
        environment=preloaded(allocator) | {"PYTHONMALLOC": python_malloc},
    )
    assert (recorded.held("kept", at="end"), recorded.blocks("kept", at="end")) == (50_000, 10_000)
    assert recorded.blocks("freed", at="end") == 0
    assert (recorded.held("python", "python", at="end"), recorded.blocks("python", "python", at="end")) == (
        40_000,
        5_000,
    )
    assert recorded.blocks("python_grown", "python", at="end") == 0


TWICE = """
import os, sys
sys.path.insert(0, {extensions!r})
import signatures, hiwater
doors, heap = signatures.load("doors"), signatures.load("heap")
sizes = [8, 24, 1_000, 3_000_000]
before = [doors.take_new(size) for size in sizes for _ in range(50)]
for number in (1, 2):
    with hiwater.record(f"{{number}}.hiw"):
        kept = [doors.take_new(size) for size in sizes for _ in range(50)] + [heap.take_malloc(8) for _ in range(50)]
        for block in before:
            doors.give_back_new(block)
    before = kept[:200]
for block in kept:
    heap.give_back(block)
print("whole")
"""


@pytest.mark.parametrize("allocator", FILES)
def test_blocks_outlive_recordings_in_the_middle_of_a_program(tmp_path: Path, allocator: str) -> None:
    for name in ("doors", "heap"):
        compiled.library(name)
    program = tmp_path / "program.py"
    program.write_text(TWICE.format(extensions=str(EXTENSIONS)))
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=child_environment(preloaded(allocator)), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("whole\n")
    for number in (1, 2):
        capture = hiwater.open(tmp_path / f"{number}.hiw")
        capture.check()
        native = capture.end.kind_bytes()["native"]
        assert native == 50 * (8 + 24 + 1_000 + 3_000_000) + 400, number


LINKED = """
#include <cstddef>
extern "C" {
void* FAMILY_malloc(std::size_t);
void FAMILY_free(void*);
void* take_linked(std::size_t size) { return FAMILY_malloc(size); }
void give_back_linked(void* block) { FAMILY_free(block); }
}
"""


@pytest.mark.parametrize(("allocator", "family"), [("mimalloc", "mi"), ("tcmalloc", "tc")])
def test_an_extension_that_is_linked_against_an_allocator(tmp_path: Path, allocator: str, family: str) -> None:
    """Its entries are the allocator's; malloc is the C library's as before. (Debian's jemalloc can only be there
    from the start.)"""
    preloaded(allocator)
    source, library = tmp_path / "linked.cpp", tmp_path / "linked.so"
    source.write_text(LINKED.replace("FAMILY", family))
    subprocess.run(["c++", "-shared", "-fPIC", source, "-o", library, f"-l:{FILES[allocator]}"], check=True)
    recorded = record(
        tmp_path,
        LOAD
        + f"""
import ctypes
linked = ctypes.CDLL({os.fspath(library)!r})
for name in ("take_linked", "give_back_linked"):
    getattr(linked, name).argtypes = [ctypes.c_size_t]
    getattr(linked, name).restype = ctypes.c_size_t
def main():
    global kept
    kept = [linked.take_linked(3_000_017) for _ in range(10)]  # @linked
    linked.give_back_linked(linked.take_linked(3_000_017))  # @gone
    kept.append(heap.take_malloc(1_000_003))  # @malloc
""",
        libraries=["heap", "doors"],
    )
    assert (recorded.held("linked", at="end"), recorded.blocks("linked", at="end")) == (30_000_170, 10)
    assert recorded.blocks("gone", at="end") == 0
    assert recorded.held("malloc", at="end") == 1_000_003
    assert not [s for s in recorded.capture.stacks("peak") if s.kind == "mapping"]


@pytest.mark.parametrize("allocator", FILES)
def test_a_report_names_the_allocator(tmp_path: Path, allocator: str) -> None:
    capture = tmp_path / "program.hiw"
    environment = child_environment(preloaded(allocator))
    run = [sys.executable, "-m", "hiwater", "run", "-q", "-o", capture, "-c", "kept = bytearray(5_000_000)"]
    subprocess.run(run, env=environment, check=True)
    words = f"{allocator} (preloaded, {FILES[allocator]})"
    told = {}
    for kind, more in {"text": ["--full"], "json": [], "html": []}.items():
        told[kind] = run_hiwater("report", "--format", kind, capture, "-o", "-", *more, check=True).stdout
    assert f"allocator: {words}\n" in told["text"]
    assert json.loads(told["json"])["process"]["allocator"] == words
    assert f"allocator: {words}" in told["html"]


def test_the_c_library_alone_is_not_named(tmp_path: Path) -> None:
    recorded = record(tmp_path, "def main(): pass")
    assert "allocator" not in hiwater.open(recorded.path).facts
