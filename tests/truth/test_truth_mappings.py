"""Mappings of every sort: what can be used counts once and in full, what cannot is listed and does not count."""

from pathlib import Path

import pytest

from naive_reader import KINDS
from recording import Recorded, needs_engine, record

pytestmark = needs_engine

MB = 1 << 20
PRELUDE = "import ctypes, os, signatures, tempfile\nmappings = signatures.load('mappings')\nMB = 1 << 20\n"


def run(folder: Path, body: str) -> Recorded:
    """Records a program whose `main` has this body."""
    lines = [line[8:] if line.startswith(" " * 8) else line for line in body.strip("\n").splitlines()]
    program = PRELUDE + "def main():\n    global kept\n" + "\n".join(f"    {line}" for line in lines) + "\n"
    return record(folder, program, libraries=["mappings"])


def kinds(recorded: Recorded, at: str = "end") -> dict[str, int]:
    """What the function `main` holds in whole mappings, by kind."""
    sums: dict[str, int] = {}
    for stack in recorded.capture.stacks(at):
        if stack.kind in ("mapping", "file", "shared", "reserved") and stack.leaf and stack.leaf.function == "main":
            sums[stack.kind] = sums.get(stack.kind, 0) + stack.bytes
    return {kind: size for kind, size in sums.items() if size}


def test_anonymous_memory_counts_under_its_line(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        mappings.map_anonymous(5 * MB)  # @plain
        mappings.map_anonymous64(6 * MB)  # @plain64
        gone = mappings.map_anonymous(7 * MB)  # @gone
        assert mappings.unmap(gone, 7 * MB) == 0
        assert mappings.map_refused(MB) == signatures.MAP_FAILED  # @refused
        """,
    )
    assert recorded.held("plain", "mapping") == 5 * MB
    assert recorded.held("plain64", "mapping") == 6 * MB
    assert recorded.held("gone", "mapping", at="peak") == 7 * MB
    assert recorded.held("gone", None, at="end") == 0
    assert recorded.stacks("refused", "file", at="end") == []
    assert kinds(recorded) == {"mapping": 11 * MB}


def test_a_fixed_mapping_over_an_own_mapping_counts_once(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_anonymous(10 * MB)  # @base
        assert mappings.map_fixed(base + 2 * MB, 3 * MB) == base + 2 * MB  # @middle
        for _ in range(20):
            mappings.map_fixed(base + 8 * MB, 2 * MB)  # @tail
        """,
    )
    assert recorded.held("base", "mapping", at="end") == 5 * MB
    assert recorded.held("middle", "mapping", at="end") == 3 * MB
    assert recorded.held("tail", "mapping", at="end") == 2 * MB
    assert kinds(recorded, "peak") == {"mapping": 10 * MB}


def test_a_reservation_laid_over_a_mapping_takes_its_place(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_anonymous(10 * MB)  # @base
        mappings.map_fixed_reserved(base, 4 * MB)  # @hole
        """,
    )
    assert kinds(recorded) == {"mapping": 6 * MB, "reserved": 4 * MB}


def test_part_of_a_mapping_is_unmapped(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_anonymous(10 * MB)  # @base
        mappings.unmap(base + 3 * MB, 2 * MB)
        mappings.unmap(base + 9 * MB, 1 * MB)
        left = mappings.map_anonymous(4 * MB)  # @left
        mappings.unmap(left, 4 * MB)
        mappings.unmap(left, 4 * MB)
        """,
    )
    assert recorded.held("base", "mapping", at="end") == 7 * MB
    assert kinds(recorded) == {"mapping": 7 * MB}


def test_one_munmap_over_several_mappings(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_reserved(12 * MB)  # @space
        for offset in range(0, 12, 2):
            mappings.map_fixed(base + offset * MB, MB)  # @islands
        mappings.unmap(base + MB // 2, 10 * MB)
        """,
    )
    # Left are half an island at the beginning, half an island at 10 MB, and behind it a megabyte of reserved space.
    assert kinds(recorded) == {"mapping": MB, "reserved": MB}


@pytest.mark.parametrize("way", ["remap", "remap_in_place"])
def test_mremap_growth_counts(tmp_path: Path, way: str) -> None:
    recorded = run(
        tmp_path,
        f"""
        space = mappings.map_reserved(128 * MB)
        base = mappings.map_fixed(space, 8 * MB)  # @base
        mappings.unmap(space + 8 * MB, 120 * MB)
        grown = mappings.{way}(base, 8 * MB, 96 * MB)  # @grown
        assert grown != signatures.MAP_FAILED
        """,
    )
    assert kinds(recorded) == {"mapping": 96 * MB}
    assert recorded.capture.peak_bytes >= 96 * MB


def test_mremap_shrinks_and_fails(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_anonymous(10 * MB)  # @base
        assert mappings.remap(base, 10 * MB, 4 * MB) == base
        wall = mappings.map_anonymous(2 * MB)
        walled = mappings.map_fixed(wall, MB)
        assert mappings.remap_in_place(walled, MB, 64 * MB * MB) == signatures.MAP_FAILED
        """,
    )
    assert kinds(recorded) == {"mapping": 6 * MB}


def test_mremap_moves_onto_another_mapping(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        target = mappings.map_anonymous(16 * MB)  # @target
        source = mappings.map_anonymous(4 * MB)  # @source
        assert mappings.remap_onto(source, 4 * MB, 6 * MB, target + 2 * MB) == target + 2 * MB
        mappings.unmap(target, 16 * MB)
        again = mappings.map_anonymous(3 * MB)  # @again
        """,
    )
    assert kinds(recorded) == {"mapping": 3 * MB}
    assert recorded.held("source", None, at="end") == recorded.held("target", None, at="end") == 0


def test_mremap_onto_a_mapping_replaces_what_it_covers(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        target = mappings.map_anonymous(16 * MB)  # @target
        source = mappings.map_anonymous(4 * MB)  # @source
        mappings.remap_onto(source, 4 * MB, 6 * MB, target + 2 * MB)
        """,
    )
    assert recorded.held("target", "mapping", at="end") == 10 * MB
    assert kinds(recorded) == {"mapping": 16 * MB}


def test_a_reservation_does_not_count_and_what_is_opened_does(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_reserved(512 * MB)  # @reservation
        assert mappings.open_reserved(base + 16 * MB, 8 * MB) == 0
        assert mappings.open_reserved(base + 64 * MB, 3 * MB) == 0
        assert mappings.close_again(base + 64 * MB, 1 * MB) == 0
        """,
    )
    assert kinds(recorded, "end") == {"mapping": 10 * MB, "reserved": 502 * MB}
    assert kinds(recorded, "peak")["mapping"] == 11 * MB
    assert recorded.capture.peak_bytes < 64 * MB


def test_making_memory_readonly_leaves_it_counted(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_anonymous(6 * MB)  # @base
        assert mappings.make_readonly(base, 2 * MB) == 0
        """,
    )
    assert kinds(recorded) == {"mapping": 6 * MB}


def test_opening_across_two_reservations(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        base = mappings.map_reserved(8 * MB)  # @first
        assert mappings.map_fixed_reserved(base + 4 * MB, 4 * MB) == base + 4 * MB  # @second
        assert mappings.open_reserved(base + 3 * MB, 2 * MB) == 0
        """,
    )
    assert kinds(recorded) == {"mapping": 2 * MB, "reserved": 6 * MB}


def test_files_are_listed_and_do_not_count_and_shared_memory_does(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        with tempfile.TemporaryFile(dir=".") as file:
            file.truncate(32 * MB)
            mappings.map_file_readonly(file.fileno(), 32 * MB)  # @file
        mappings.map_shared_anonymous(5 * MB)  # @shared
        descriptor = mappings.make_memfd(6 * MB)
        mappings.map_file_shared(descriptor, 6 * MB)  # @memfd
        segment = ctypes.c_int()
        mappings.attach_segment(7 * MB, ctypes.addressof(segment))  # @segment
        other = mappings.attach_segment(9 * MB, ctypes.addressof(segment))  # @detached
        assert mappings.detach_segment(other) == 0
        """,
    )
    listed = {name: [(s.kind, s.bytes) for s in recorded.stacks(name, None, "end") if s.bytes >= MB]
              for name in ("file", "shared", "memfd", "segment", "detached")}  # fmt: skip
    assert listed == {
        "file": [("file", 32 * MB)],
        "shared": [("shared", 5 * MB)],
        "memfd": [("shared", 6 * MB)],
        "segment": [("shared", 7 * MB)],
        "detached": [],
    }
    shared = sum(stack.bytes for stack in recorded.capture.stacks("peak") if stack.kind == "shared")
    assert shared == 27 * MB <= recorded.capture.peak_bytes < 32 * MB


@pytest.mark.skipif(" /dev/shm tmpfs " not in Path("/proc/mounts").read_text(), reason="/dev/shm is no tmpfs here")
def test_python_mmap_and_shared_memory(tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        """
        import mmap
        from multiprocessing import shared_memory
        private = mmap.mmap(-1, 5 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # @private
        shared = shared_memory.SharedMemory(create=True, size=6 * MB)
        kept = private, shared
        shared.unlink()
        """,
    )
    assert recorded.held("private", "mapping", at="end") == 5 * MB
    assert recorded.through("main", "shared", at="end") == 6 * MB


def test_the_break_moves_as_asked(tmp_path: Path) -> None:
    """sbrk answers as ever, and memory got that way never turns up as a block of malloc's."""
    recorded = run(
        tmp_path,
        """
        old = mappings.grow_break(2 * MB)  # @grow
        assert mappings.grow_break(0) == old + 2 * MB
        ctypes.memset(old, 1, 2 * MB)
        """,
    )
    assert recorded.stacks("grow", "native", at="end") == []
    assert recorded.held("grow", None, at="end") in (0, 2 * MB)


def test_ten_thousand_mappings_stay_cheap(tmp_path: Path) -> None:
    """5,000 reservations with one page opened in each: 10,000 intervals, exact and not quadratic."""
    recorded = run(
        tmp_path,
        """
        import time
        for count in (1_000, 4_000):
            start = time.process_time()
            assert mappings.checkerboard(count, 4096) == 0  # @board
            print(time.process_time() - start)
        """,
    )
    assert recorded.held("board", "mapping", at="end") == 5_000 * 4096
    assert recorded.held("board", "reserved", at="end") == 5_000 * 4096
    first, then = map(float, recorded.stdout.split())
    assert then < 12 * first, "four times as many: 4 times the time where it is linear, 24 where it is quadratic"


def test_arenas_are_slack_and_not_counted_twice(tmp_path: Path) -> None:
    """A hundred megabytes of small objects live in arenas; the peak holds the objects and not the arenas too."""
    recorded = run(
        tmp_path,
        """
        kept = [float(number) for number in range(1_000_000)]  # @floats
        """,
    )
    by_kind = recorded.capture.header["kind_live_bytes"]
    assert isinstance(by_kind, list)
    python, mapping, slack = (by_kind[KINDS.index(kind)] for kind in ("python", "mapping", "slack"))
    assert python >= 24 * 1_000_000
    assert mapping < MB
    assert slack > 0
    assert recorded.capture.peak_bytes < 24_000_000 + 8 * 1_000_000 + 8 * 1_200_000


@pytest.mark.parametrize("moment", ["loaded before", "loaded while recording"])
def test_a_library_s_mapping_names_the_library(tmp_path: Path, moment: str) -> None:
    before = moment == "loaded before"
    recorded = record(
        tmp_path,
        f"""
        import mmap, signatures
        {'mappings = signatures.load("mappings")' if before else ""}
        def main():
            {"" if before else 'global mappings; mappings = signatures.load("mappings")'}
            mappings.map_anonymous(1 << 20)  # @library
            reserved = mappings.map_reserved(1 << 20)  # @reserved
            mappings.open_reserved(reserved, 1 << 20)  # @opened
            moved = mappings.remap(mappings.map_anonymous(1 << 20), 1 << 20, 1 << 21)  # @moved
            global own
            own = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # @python
        """,
        libraries=["mappings"],
    )
    for name, size in {"library": 1 << 20, "opened": 1 << 20, "moved": 1 << 21}.items():
        (stack,) = recorded.stacks(name, "mapping", at="end")
        assert stack.bytes == size, name
        assert (stack.frames[-1].function, stack.frames[-1].file) == ("[mapping]", "mapped by mappings.so"), name
    (stack,) = recorded.stacks("python", "mapping", at="end")
    assert stack.frames[-1].kind == "python"
