"""Shared memory: what this process made counts once, under the stack that mapped it; what another process made is
listed and does not count."""

import csv
import io
import json
import mmap
import re
from pathlib import Path

import pytest

import hiwater
import naive_reader
from children import run_hiwater
from recording import Recorded, needs_engine, record

pytestmark = [
    needs_engine,
    pytest.mark.skipif(" /dev/shm tmpfs " not in Path("/proc/mounts").read_text(), reason="/dev/shm is no tmpfs here"),
]

MB = 1 << 20
PRELUDE = """\
import ctypes, mmap, multiprocessing, os, signatures, subprocess, sys, tempfile
import multiprocessing.heap, multiprocessing.resource_tracker
from multiprocessing import shared_memory
import hiwater
mappings = signatures.load("mappings")
MB = 1 << 20
kept = []
def in_child(function):
    child = os.fork()
    if child == 0:
        os._exit(0 if function() else 1)
    assert os.waitpid(child, 0)[1] == 0
"""


def run(folder: Path, body: str, *, before: str = "", sample_bytes: int = 0) -> Recorded:
    """Records a program whose `main` has this body; `before` is at module level, outside the recording."""
    lines = [line[8:] if line.startswith(" " * 8) else line for line in body.strip("\n").splitlines()]
    program = PRELUDE + before + "def main():\n" + "\n".join(f"    {line}" for line in lines) + "\n"
    return record(folder, program, libraries=["mappings"], sample_bytes=sample_bytes)


def total(recorded: Recorded, kind: str, at: str = "end") -> int:
    return sum(stack.bytes for stack in recorded.capture.stacks(at) if stack.kind == kind)


# --- made by this process ---------------------------------------------------------------------------------------------

MAKERS = {
    "mmap.mmap(-1, n)": "kept.append(mmap.mmap(-1, 8 * MB))",
    "/dev/zero": "kept.append(mmap.mmap(os.open('/dev/zero', os.O_RDWR), 8 * MB))",
    "memfd, truncated": "fd = os.memfd_create('a'); os.ftruncate(fd, 8 * MB); kept.append(mmap.mmap(fd, 8 * MB))",
    "memfd, written": "fd = os.memfd_create('a'); os.write(fd, bytes(8 * MB)); kept.append(mmap.mmap(fd, 8 * MB))",
    "memfd, allocated": "fd = os.memfd_create('a'); os.posix_fallocate(fd, 0, 8 * MB);"
    "kept.append(mmap.mmap(fd, 8 * MB))",
    "SharedMemory": "segment = shared_memory.SharedMemory(create=True, size=8 * MB); kept.append(segment);"
    "segment.unlink()",
    "RawArray": "kept.append(multiprocessing.RawArray('b', 8 * MB))",
    "numpy over SharedMemory": "segment = shared_memory.SharedMemory(create=True, size=8 * MB); segment.unlink();"
    "a = numpy.frombuffer(segment.buf, numpy.uint8); a[:] = 1; kept.append((a, segment))",
    "shm_open": "libc = ctypes.CDLL(None); name = b'/hiwater-test-%d' % os.getpid();"
    "fd = libc.shm_open(name, os.O_CREAT | os.O_RDWR, 0o600); libc.ftruncate(fd, ctypes.c_long(8 * MB));"
    "kept.append(mmap.mmap(fd, 8 * MB)); libc.shm_unlink(name)",
    "shm_open, written": "libc = ctypes.CDLL(None); name = b'/hiwater-test-%d' % os.getpid();"
    "fd = libc.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600); os.write(fd, bytes(8 * MB));"
    "kept.append(mmap.mmap(fd, 8 * MB)); libc.shm_unlink(name)",
    "deleted file": "fd, path = tempfile.mkstemp(dir='/dev/shm'); os.unlink(path); os.ftruncate(fd, 8 * MB);"
    "kept.append(mmap.mmap(fd, 8 * MB))",
    "O_TMPFILE, written": "fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR); os.write(fd, bytes(8 * MB));"
    "kept.append(mmap.mmap(fd, 8 * MB))",
    "file, written": "path = '/dev/shm/hiwater-test-%d' % os.getpid(); file = open(path, 'w+b');"
    "file.write(bytes(8 * MB)); file.flush(); os.unlink(path); kept.append(mmap.mmap(file.fileno(), 8 * MB))",
    "numpy.memmap": "path = '/dev/shm/hiwater-test-%d' % os.getpid(); "
    "kept.append(numpy.memmap(path, mode='w+', shape=8 * MB)); os.unlink(path)",
    "segment": "segment = ctypes.c_int(); mappings.attach_segment(8 * MB, ctypes.addressof(segment))",
}  # fmt: skip


@pytest.mark.parametrize("way", MAKERS)
def test_what_this_process_made_counts_under_its_stack(tmp_path: Path, way: str) -> None:
    recorded = run(tmp_path, f"{MAKERS[way]}  # @made", before="import numpy\n" if "numpy" in way else "")
    assert recorded.through("main", "shared", at="end") == 8 * MB
    assert recorded.through("main", "shared", at="peak") == 8 * MB
    assert total(recorded, "attached") == 0
    assert 8 * MB <= recorded.capture.peak_bytes < (18 if "written" in way else 10) * MB


def test_in_a_sampled_recording_shared_memory_is_exact(tmp_path: Path) -> None:
    recorded = run(tmp_path, MAKERS["mmap.mmap(-1, n)"] + "  # @made", sample_bytes=1 << 16)
    assert recorded.held("made", "shared", at="end") == 8 * MB


def test_what_was_made_and_unmapped_is_in_the_peak_only(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        block = mmap.mmap(-1, 8 * MB)  # @made
        block.close()
        """,
    )
    assert recorded.held("made", "shared", at="peak") == 8 * MB
    assert recorded.held("made", "shared", at="end") == 0


# --- made by another --------------------------------------------------------------------------------------------------


def test_segments_of_another_process_are_attached_and_do_not_count(tmp_path: Path) -> None:
    maker = tmp_path / "maker.py"
    maker.write_text(
        "import sys\nfrom multiprocessing import resource_tracker, shared_memory\n"
        "segment = shared_memory.SharedMemory(create=True, size=8 << 20)\n"
        "resource_tracker.unregister(segment._name, 'shared_memory')\nprint(segment.name)\n"
    )
    recorded = run(
        tmp_path,
        f"""
        name = subprocess.run([sys.executable, {str(maker)!r}], stdout=subprocess.PIPE, text=True,
            check=True).stdout.strip()
        segment = shared_memory.SharedMemory(name=name)
        kept.append(segment)
        segment.unlink()
        mappings.attach_segment_of_child(4 * MB)  # @segment
        """,
    )
    assert recorded.through("main", "attached", at="end") == 12 * MB
    assert recorded.held("segment", "attached", at="end") == 4 * MB
    assert total(recorded, "shared") == 0
    assert recorded.capture.peak_bytes < 8 * MB


def test_resizing_what_another_made_does_not_make_it_ones_own(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        path = tempfile.mktemp(dir='/dev/shm')
        def make():
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
            os.ftruncate(fd, 2 * MB)
            return True
        in_child(make)
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        os.unlink(path)
        os.ftruncate(fd, 2 * MB)
        os.ftruncate(fd, 8 * MB)
        kept.append(mmap.mmap(fd, 8 * MB))  # @theirs
        """,
    )
    assert recorded.held("theirs", "attached", at="end") == 8 * MB
    assert total(recorded, "shared") == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_uses_an_array_of_its_parent_did_not_make_it(tmp_path: Path, method: str) -> None:
    """The parent counts it, and goes on to do so when the child has ended; the child, recorded by itself, does not."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys, hiwater\n"
        "def work(array, path):\n"
        "    with hiwater.record(path):\n"
        "        array[0] = 1\n"
        "        own = multiprocessing.RawArray('b', 2 << 20)\n"
        "def main():\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    array = context.Array('b', 8 << 20)\n"
        "    child = context.Process(target=work, args=(array, 'child.hiw'))\n"
        "    child.start(); child.join()\n"
        "    assert child.exitcode == 0 and array[0] == 1\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    run_hiwater("run", "--no-children", "-o", "parent.hiw", script, folder=tmp_path, check=True)
    parent, child = naive_reader.read(tmp_path / "parent.hiw"), naive_reader.read(tmp_path / "child.hiw")
    assert sum(s.bytes for s in parent.stacks("peak") if s.kind == "shared" and s.passes("main")) == 8 * MB
    assert sum(s.bytes for s in child.stacks("peak") if s.kind == "shared") == 2 * MB
    assert child.peak_bytes < 4 * MB


def test_a_forked_child_that_unmaps_changes_nothing_in_the_parent(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        block = mmap.mmap(-1, 8 * MB)  # @made
        def unmap():
            block.close()
            return True
        in_child(unmap)
        kept.append(block)
        """,
    )
    assert recorded.held("made", "shared", at="end") == 8 * MB


def test_a_file_that_is_no_memory_stays_a_file(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        file = tempfile.TemporaryFile(dir=os.curdir)
        file.truncate(8 * MB)
        kept.append(mmap.mmap(file.fileno(), 8 * MB))  # @file
        """,
    )
    assert recorded.held("file", "file", at="end") == 8 * MB
    assert total(recorded, "shared") == total(recorded, "attached") == 0


# --- pages count once -------------------------------------------------------------------------------------------------


def test_two_mappings_of_one_object_count_once(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        fd = mappings.make_memfd(8 * MB)
        first = mappings.map_file_shared(fd, 8 * MB)  # @first
        mappings.map_file_shared(fd, 8 * MB)  # @second
        addresses = (ctypes.c_size_t * 2)()
        mappings.attach_twice(4 * MB, ctypes.addressof(addresses))  # @segment
        """,
    )
    assert recorded.held("first", "shared", at="peak") == 8 * MB
    assert recorded.held("second", "shared", at="peak") == 0
    assert recorded.held("segment", "shared", at="peak") == 4 * MB
    assert recorded.capture.peak_bytes < 14 * MB


def test_pages_count_until_their_last_mapping_is_gone(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        fd = mappings.make_memfd(8 * MB)
        first = mappings.map_file_shared(fd, 8 * MB)  # @first
        part = mappings.map_shared_part(fd, 4 * MB, 2 * MB)  # @part
        mappings.unmap(first, 8 * MB)
        one = mappings.map_file_shared(fd, 3 * MB)  # @again
        """,
    )
    assert recorded.held("first", "shared", at="end") == 4 * MB
    assert recorded.held("part", "shared", at="end") == 0
    assert recorded.held("again", "shared", at="end") == 2 * MB
    assert recorded.held("first", "shared", at="peak") == 8 * MB
    assert total(recorded, "shared") == 6 * MB


def test_all_of_it_unmapped_leaves_nothing(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        fd = mappings.make_memfd(8 * MB)
        first = mappings.map_file_shared(fd, 8 * MB)
        second = mappings.map_shared_part(fd, 4 * MB, 2 * MB)
        mappings.unmap(first + MB, 3 * MB)
        mappings.unmap(second, 4 * MB)
        mappings.unmap(first, 8 * MB)
        """,
    )
    assert [stack for stack in recorded.capture.stacks("end") if stack.kind == "shared"] == []


def test_mapping_over_shared_memory_and_over_a_hole(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        block = mappings.map_shared_anonymous(8 * MB)  # @block
        mappings.map_fixed(block + 2 * MB, 1 * MB)  # @over
        fd = mappings.make_memfd(1 * MB)
        mappings.map_shared_fixed(block + 6 * MB, 1 * MB, fd)  # @memfd
        mappings.map_shared_fixed(block + 7 * MB, 1 * MB, fd)  # @twice
        """,
    )
    assert recorded.held("block", "shared", at="end") == 5 * MB
    assert recorded.held("over", "mapping", at="end") == 1 * MB
    assert recorded.held("memfd", "shared", at="end") == 1 * MB
    assert recorded.held("twice", "shared", at="end") == 0


def test_mremap_moves_grows_and_duplicates(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        fd = mappings.make_memfd(8 * MB)
        small = mappings.map_file_shared(fd, 4 * MB)  # @small
        grown = mappings.remap(small, 4 * MB, 8 * MB)  # @grown
        again = mappings.remap(grown, 0, 8 * MB)  # @duplicate
        assert again not in (grown, signatures.MAP_FAILED)
        mappings.unmap(grown, 8 * MB)
        """,
    )
    assert recorded.held("small", "shared", at="end") == 0
    assert recorded.held("grown", "shared", at="end") == 8 * MB
    assert recorded.held("duplicate", "shared", at="end") == 0
    assert recorded.held("grown", "shared", at="peak") == 8 * MB


def test_a_shared_reservation_counts_when_it_is_opened(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        space = mappings.map_shared_reserved(64 * MB)  # @space
        assert mappings.open_reserved(space + 8 * MB, 4 * MB) == 0  # @opened
        assert mappings.close_again(space + 8 * MB, 1 * MB) == 0
        assert mappings.make_readonly(space + 10 * MB, 1 * MB) == 0
        """,
    )
    assert recorded.held("space", "reserved", at="end") == 60 * MB
    assert recorded.held("opened", "reserved", at="end") == 1 * MB
    assert recorded.held("opened", "shared", at="end") == 3 * MB
    assert recorded.held("opened", "shared", at="peak") == 4 * MB


def test_a_failed_munmap_changes_nothing(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        fd = mappings.make_memfd(8 * MB)
        first = mappings.map_file_shared(fd, 8 * MB)  # @first
        second = mappings.map_file_shared(fd, 8 * MB)
        assert mappings.unmap(first + 1, 8 * MB) == -1
        assert mappings.unmap(second + 1, 8 * MB) == -1
        """,
    )
    assert recorded.held("first", "shared", at="end") == 8 * MB
    assert total(recorded, "shared") == 8 * MB


# --- the same figure everywhere ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of `hiwater run`: 8 MiB and 3 MiB of its own, the first touched, and 5 MiB of another process."""
    folder = tmp_path_factory.mktemp("reports")
    script = folder / "script.py"
    script.write_text(
        "import mmap, os\n"
        "kept = []\n"
        "def own():\n"
        "    kept.append(mmap.mmap(-1, 8 << 20))\n"
        "    for page in range(0, 8 << 20, 4096):\n"
        "        kept[0][page] = 1\n"
        "    fd = os.memfd_create('buffer')\n"
        "    os.ftruncate(fd, 3 << 20)\n"
        "    kept.append(mmap.mmap(fd, 3 << 20))\n"
        "def theirs():\n"
        "    path = f'/dev/shm/hiwater-test-{os.getpid()}'\n"
        "    if os.fork() == 0:\n"
        "        os.ftruncate(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR), 5 << 20)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    fd = os.open(path, os.O_RDWR)\n"
        "    os.unlink(path)\n"
        "    kept.append(mmap.mmap(fd, 5 << 20))\n"
        "own(); theirs()\n"
    )
    run_hiwater("run", "--no-children", "-o", "run.hiw", script, folder=folder, check=True)
    return folder / "run.hiw"


def report(path: Path, *arguments: str, verb: str = "report") -> str:
    done = run_hiwater(verb, *arguments, path, folder=path.parent, check=True)
    return done.stdout


def test_every_view_shows_the_same_shared_memory(captured: Path) -> None:
    said = json.loads(report(captured, "--at", "end", "--kind", "shared", "--format", "json"))
    assert said["shown"]["bytes"] == sum(stack["bytes"] for stack in said["stacks"]) == 11 * MB
    assert {stack["kind"] for stack in said["stacks"]} == {"shared"}
    assert said["peak"]["shared_bytes"] == 11 * MB
    kinds = ("python", "native", "mapping", "device", "shared")
    assert said["peak"]["allocated_bytes"] == sum(said["peak"][f"{kind}_bytes"] for kind in kinds) >= 11 * MB
    assert {entry["class"]: entry["bytes"] for entry in said["mappings"]}["attached"] == 5 * MB
    for form in ("text", "tree", "table"):
        assert "11.0 MiB" in report(captured, "--at", "end", "--kind", "shared", "--format", form), form
    text = report(captured, "--at", "end", "--full")
    assert re.search(r"11\.0 MiB .* shared memory\n", text)
    assert re.search(r"5\.0 MiB .* attached shared memory, not part of the sum\n", text)
    rows = list(csv.DictReader(io.StringIO(report(captured, "--at", "end", "--kind", "shared", "--format", "csv"))))
    assert sum(int(row["held_bytes"]) for row in rows) == 11 * MB
    lines = report(captured, "--kind", "shared", "--format", "collapsed").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 11 * MB


def test_a_shared_mapping_s_resident_pages_lead_to_its_line(captured: Path) -> None:
    capture = hiwater.open(captured)
    look = capture.residency_snapshots[-1]
    shared = [
        block for block in look.large if block.bytes == 8 * MB and block.frames and block.frames[-1].function == "own"
    ]
    assert [block.touched_bytes for block in shared] == [8 * MB]
    (part,) = (part.resident_bytes for part in look.parts if part.name == "shared")
    assert part >= 8 * MB


def test_diff_and_merge_count_shared_memory(captured: Path, tmp_path: Path) -> None:
    said = json.loads(report(captured, str(captured), "--kind", "shared", "--format", "json", verb="diff"))
    assert said["allocated"]["bytes"]["before"] == said["allocated"]["bytes"]["after"] == 11 * MB
    merged = tmp_path / "merged.hiw"
    report(captured, "-o", str(merged), verb="merge")
    (capture,) = hiwater.open_run(merged).captures
    assert capture.peak.kind_bytes()["shared"] == 11 * MB
    assert capture.end.kind_bytes()["attached"] == 5 * MB
    assert capture.problems() == []
    assert set(capture.timeline.kind_bytes["shared"].tolist()) <= {0, 8 * MB, 11 * MB}


def test_the_heap_s_meter_counts_shared_memory() -> None:
    before = hiwater.breakdown().allocated
    with hiwater.track("heap", meters=("heap",)) as scope:
        block = mmap.mmap(-1, 8 * MB)
        during = hiwater.breakdown().allocated
        block.close()
    assert during["shared"] - before.get("shared", 0) == 8 * MB
    assert scope.usage.heap.peak_bytes - scope.usage.heap.start_bytes >= 8 * MB


def test_a_killed_program_s_capture_has_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mmap, os, signal\nm = mmap.mmap(-1, 8 << 20)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = run_hiwater("run", "-o", "run.hiw", script, folder=tmp_path)
    assert done.returncode == -9
    assert hiwater.open(tmp_path / "run.hiw").peak.kind_bytes()["shared"] == 8 * MB


def test_a_recording_inside_another_has_what_was_made_in_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import mmap, hiwater\n"
        "before = mmap.mmap(-1, 2 << 20)\n"
        "with hiwater.record('inner.hiw'):\n"
        "    inner = mmap.mmap(-1, 8 << 20)\n"
        "    del inner\n"
        "after = mmap.mmap(-1, 3 << 20)\n"
    )
    run_hiwater("run", "-o", "outer.hiw", script, folder=tmp_path, check=True)
    assert hiwater.open(tmp_path / "outer.hiw").end.kind_bytes()["shared"] == 5 * MB
    assert hiwater.open(tmp_path / "inner.hiw").peak.kind_bytes()["shared"] == 10 * MB


def test_what_was_made_before_the_recording_is_attached(tmp_path: Path) -> None:
    """It is not known who made it: docs/limitations.md."""
    recorded = run(
        tmp_path,
        """
        kept.append(mmap.mmap(earlier, 8 * MB))  # @earlier
        """,
        before="earlier = os.memfd_create('earlier')\nos.ftruncate(earlier, 8 * MB)\n",
    )
    assert recorded.held("earlier", "attached", at="end") == 8 * MB
    assert total(recorded, "shared") == 0


def test_threads_that_map_and_unmap_at_random_leave_nothing(tmp_path: Path) -> None:
    """Parts of four objects, mapped, cut, moved, duplicated, closed and opened; the engine checks its own sums
    meanwhile."""
    recorded = run(
        tmp_path,
        """
        import random, threading
        import hiwater._core as core
        page, objects = 4096, [mappings.make_memfd(64 * 4096) for _ in range(4)]
        def step(draw, held):
            what = draw.randrange(8)
            if what < 3 or not held:
                first = draw.randrange(60)
                pages = draw.randrange(1, 64 - first + 1)
                if what == 0:
                    held.append((mappings.map_shared_anonymous(pages * page), pages))
                else:
                    held.append((mappings.map_shared_part(draw.choice(objects), pages * page, first * page), pages))
                return
            place = draw.randrange(len(held))
            at, pages = held[place]
            if what == 3:
                gone = draw.randrange(1, pages + 1)
                mappings.unmap(at, gone * page)
                held[place : place + 1] = [(at + gone * page, pages - gone)] if gone < pages else []
            elif what == 4:
                again = mappings.remap(at, 0, pages * page)
                held += [(again, pages)] if again != signatures.MAP_FAILED else []
            elif what == 5:
                protect = draw.choice((mappings.close_again, mappings.open_reserved, mappings.make_readonly))
                protect(at, draw.randrange(1, pages + 1) * page)
            else:
                size = draw.randrange(1, pages + 4)
                moved = mappings.remap(at, pages * page, size * page)
                held[place] = (moved, size) if moved != signatures.MAP_FAILED else (at, pages)
        def work(seed):
            draw, held = random.Random(seed), []
            for number in range(1500):
                step(draw, held)
                if number % 300 == 0:
                    core.self_check()
            for at, pages in held:
                mappings.unmap(at, pages * page)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        """,
    )
    left = [stack for stack in recorded.capture.stacks("end") if stack.kind in ("shared", "attached", "reserved")]
    assert left == []
    assert total(recorded, "shared", at="peak") > 0
