"""Every way to ask the heap for memory: each block is found with exactly its bytes, under the line that asked."""

from pathlib import Path

import pytest

import compiled
import heap_blocks
import hiwater
from recording import Recorded, needs_engine, record

pytestmark = needs_engine

PROGRAM = (
    """
import signatures
{early}
def main():
    {late}
"""
    + heap_blocks.CALLS
    + """
    kept += [
        heap.take_pvalloc(1_000_099),  # @pvalloc
        heap.take_malloc(0),  # @nothing
        heap.take_malloc(1),  # @one
    ]
"""
)
EXPECTED = heap_blocks.BLOCKS | {"nothing": (0, 1), "one": (1, 1)}


@pytest.mark.parametrize("moment", ["loaded before", "loaded while recording"])
@pytest.mark.parametrize("linking", list(compiled.LINKINGS))
def test_every_door_of_the_heap(tmp_path: Path, linking: str, moment: str) -> None:
    load = f'heap = signatures.load("{linking}")'
    early, late = (load, "pass") if moment == "loaded before" else ("", f"global heap; {load}")
    recorded = record(tmp_path, PROGRAM.format(early=early, late=late), libraries=[linking])
    for name, (size, blocks) in EXPECTED.items():
        for at in ("peak", "end"):
            assert (recorded.held(name, at=at), recorded.blocks(name, at=at)) == (size, blocks), (name, at)
            assert recorded.held(name, kind="mapping", at=at) == 0, "a block that malloc mapped is counted twice"
    # pvalloc rounds up to whole pages; whether the request or what was given is counted is libc's affair.
    assert recorded.held("pvalloc") in (1_000_099, 1_003_520)
    assert (recorded.held("gone", at="end"), recorded.blocks("gone", at="end")) == (0, 0)


def test_the_whole_stack_is_named(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def inner(size):
            return heap.take_malloc(size)  # @inner
        class Worker:
            def outer(self, size):
                return inner(size)  # @outer
        def main():
            Worker().outer(1_000_003)  # @first
            Worker().outer(2_000_003)  # @second
        """,
        libraries=["heap"],
    )
    stacks = recorded.stacks("inner", "native")
    assert [stack.bytes for stack in stacks] == [2_000_003, 1_000_003]
    for stack, caller in zip(stacks, ("second", "first"), strict=True):
        program = str(recorded.program)
        assert [(f.function, f.file, f.line) for f in stack.frames if f.kind == "python"][-3:] == [
            ("main", program, recorded.line(caller)),
            ("Worker.outer", program, recorded.line("outer")),
            ("inner", program, recorded.line("inner")),
        ]
        assert [frame.function for frame in stack.frames][:2] == ["<module>", "_record"]


REALLOC = """
import signatures
heap = signatures.load("heap")
def main():
    grown = heap.take_malloc(1_000_003)  # @before_growth
    grown = heap.take_realloc(grown, 3_000_017)  # @growth
    shrunk = heap.take_malloc(2_000_003)  # @before_shrink
    shrunk = heap.take_realloc(shrunk, 500_009)  # @shrink
    emptied = heap.take_malloc(4_000_037)  # @before_empty
    assert heap.take_realloc(emptied, 0) == 0  # @empty
    refused = heap.take_malloc(700_001)  # @before_refusal
    assert heap.take_realloc(refused, 2**63 - 1) == 0  # @refusal
    assert heap.take_reallocarray(refused, 2**62, 8) == 0  # @overflow
    assert heap.take_malloc(2**63 - 1) == 0  # @malloc_refused
    assert heap.take_calloc(2**62, 8) == 0  # @calloc_refused
    assert heap.refused_posix_memalign(100) == 22  # @memalign_refused
    array = heap.take_reallocarray(0, 1_000, 100)  # @array_before
    array = heap.take_reallocarray(array, 1_000, 300)  # @array
    same = heap.take_malloc(10_007)  # @same_before
    same = heap.take_realloc(same, 10_007)  # @same
"""


@pytest.fixture(scope="module")
def realloc_run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if needs_engine.args[0]:
        pytest.skip("no engine")
    return record(tmp_path_factory.mktemp("realloc"), REALLOC, libraries=["heap"])


@pytest.mark.parametrize(
    ("name", "size", "blocks"),
    [
        ("before_growth", 0, 0),
        ("growth", 3_000_017, 1),
        ("before_shrink", 0, 0),
        ("shrink", 500_009, 1),
        ("before_empty", 0, 0),
        ("empty", 0, 0),
        ("before_refusal", 700_001, 1),
        ("refusal", 0, 0),
        ("overflow", 0, 0),
        ("malloc_refused", 0, 0),
        ("calloc_refused", 0, 0),
        ("memalign_refused", 0, 0),
        ("array_before", 0, 0),
        ("array", 300_000, 1),
        ("same_before", 0, 0),
        ("same", 10_007, 1),
    ],
)
def test_realloc_grows_shrinks_frees_and_fails(realloc_run: Recorded, name: str, size: int, blocks: int) -> None:
    assert (realloc_run.held(name, at="end"), realloc_run.blocks(name, at="end")) == (size, blocks)


def test_realloc_to_nothing_frees_at_once(tmp_path: Path) -> None:
    """Ten blocks of 3 MB, one after the other, each ended by realloc(p, 0): the peak is one of them, not ten."""
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def main():
            for _ in range(10):
                block = heap.take_malloc(3_000_001)  # @block
                heap.take_realloc(block, 0)
        """,
        libraries=["heap"],
    )
    assert (recorded.held("block"), recorded.blocks("block")) == (3_000_001, 1)
    assert recorded.held("block", at="end") == 0
    assert 3_000_001 <= recorded.capture.peak_bytes < 4_000_000


def test_the_peak_is_the_highest_moment_and_the_end_is_the_end(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def main():
            low = heap.take_malloc(5_000_011)  # @low
            high = heap.take_malloc(40_000_003)  # @high
            half = heap.take_malloc(3_000_017)  # @half
            heap.give_back(high)
            later = heap.take_malloc(20_000_003)  # @later
            heap.give_back(half)
        """,
        libraries=["heap"],
    )
    peak = {name: recorded.held(name, at="peak") for name in ("low", "high", "half", "later")}
    end = {name: recorded.held(name, at="end") for name in ("low", "high", "half", "later")}
    assert peak == {"low": 5_000_011, "high": 40_000_003, "half": 3_000_017, "later": 0}
    assert end == {"low": 5_000_011, "high": 0, "half": 0, "later": 20_000_003}


def test_equal_peaks_in_turn_hold_one_of_them(tmp_path: Path) -> None:
    """Sawtooth: whichever tooth was the highest is shown whole, with nothing of its neighbours."""
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def even(size):
            return heap.take_malloc(size)  # @even
        def odd(size):
            return heap.take_malloc(size)  # @odd
        def main():
            for tooth in range(100):
                block = (odd if tooth % 2 else even)(1_000_000 + (10_000 if tooth == 61 else 0))
                heap.give_back(block)
        """,
        libraries=["heap"],
    )
    assert (recorded.held("even"), recorded.held("odd")) == (0, 1_010_000)


def test_blocks_older_than_the_recording_do_not_count(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def before():
            global freed, grown
            freed, grown = heap.take_malloc(30_000_001), heap.take_malloc(1_000_003)
        def main():
            heap.give_back(freed)
            resized = heap.take_realloc(grown, 2_000_003)  # @resized
            own = heap.take_malloc(1_000_033)  # @own
        """,
        libraries=["heap"],
    )
    assert recorded.held("own") == 1_000_033
    assert recorded.held("resized") == 2_000_003
    assert recorded.capture.header["live_bytes"] < 4_000_000


@pytest.mark.parametrize("taker", ["reuse_unseen", "reuse_unseen_by_calloc"])
def test_blocks_freed_behind_our_back_and_reused_do_not_inflate(tmp_path: Path, taker: str) -> None:
    recorded = record(
        tmp_path,
        f"""
        import signatures
        heap = signatures.load("heap")
        def main():
            heap.{taker}(10_000, 2_000)  # @reuse
        """,
        libraries=["heap"],
    )
    for at in ("peak", "end"):
        assert (recorded.held("reuse", at=at), recorded.blocks("reuse", at=at)) == (2_000, 1), at


def test_a_reused_address_belongs_to_its_new_owner(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def main():
            first = heap.take_malloc(888)  # @first
            heap.give_back_unseen(first)
            second = heap.take_malloc(888)  # @second
            print(first == second)
        """,
        libraries=["heap"],
    )
    assert recorded.stdout == "True\n", "libc did not hand out the address again: the test shows nothing"
    assert (recorded.held("first", at="end"), recorded.held("second", at="end")) == (0, 888)


def test_what_libc_allocates_by_itself_counts(tmp_path: Path) -> None:
    recorded = record(
        tmp_path,
        """
        import ctypes, signatures
        heap = signatures.load("heap")
        text = ctypes.create_string_buffer(b"x" * 1_000_002)
        def main():
            copy = heap.take_strdup(ctypes.addressof(text))  # @strdup
            other = heap.take_strdup(ctypes.addressof(text))  # @other
            heap.give_back(other)
        """,
        libraries=["heap"],
    )
    assert recorded.held("strdup", at="end") == 1_000_003
    assert recorded.held("other", at="end") == 0


def test_sized_frees(tmp_path: Path) -> None:
    """Where libc has them they free; where it has none the name stays without an address, recorder or not."""
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        early = heap.has_free_sized(), heap.has_free_aligned_sized()
        def main():
            late = signatures.load("heap_noplt")
            assert early == (late.has_free_sized(), late.has_free_aligned_sized())
            sized = heap.take_malloc(1_000_003)  # @sized
            aligned = heap.take_aligned_alloc(64, 640_000)  # @aligned
            heap.give_back_sized(sized, 1_000_003) if early[0] else heap.give_back(sized)
            heap.give_back_aligned_sized(aligned, 64, 640_000) if early[1] else heap.give_back(aligned)
        """,
        libraries=["heap", "heap_noplt"],
    )
    assert (recorded.held("sized", at="end"), recorded.held("aligned", at="end")) == (0, 0)


def test_all_doors_work_after_the_recording(tmp_path: Path) -> None:
    """Slots are put back; blocks of the recorded time can be freed and grown by the plain functions."""
    recorded = record(
        tmp_path,
        """
        import signatures
        heap, lookup = signatures.load("heap"), signatures.load("lookup")
        def main():
            global block, grown, late
            lookup.keep_dlsym()
            block, grown = heap.take_malloc(1_000_003), heap.take_malloc(1_000_033)  # @both
            late = signatures.load("heap_noplt")
        def after():
            heap.give_back(block)
            heap.give_back(late.take_realloc(grown, 5_000_000))
            heap.give_back(lookup.take_kept(1_000_000))
            late.give_back(late.take_malloc(1_000_000))
            print("well")
        """,
        libraries=["heap", "heap_noplt", "lookup"],
    )
    assert recorded.stdout == "well\n"
    assert recorded.held("both", at="end") == 1_000_003 + 1_000_033


def test_a_fork_handler_of_another_library_may_allocate(tmp_path: Path) -> None:
    """One that was there before the recording runs while the recorder holds its lock over the fork. Arrow has such a
    handler."""
    record(
        tmp_path,
        """
        import ctypes, os
        kept = []
        @ctypes.CFUNCTYPE(None)
        def prepare():
            kept.append(bytearray(5_000))
        def before():
            getattr(ctypes.CDLL(None), "__register_atfork")(prepare, None, None, None)
        def main():
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0 and len(kept) == 1
            kept.clear()
        """,
        timeout=300,
    )


@pytest.mark.parametrize("sample_bytes", [0, 512], ids=["exact", "sampled"])
def test_blocks_freed_unseen_are_not_live_at_the_end(tmp_path: Path, sample_bytes: int) -> None:
    """malloc's own marks tell: of blocks that it mapped, of those beside free memory, of those in this thread's
    cache."""
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def main():
            global kept
            sizes = [4_000_001, 200_000, 50_000, 5_000, 1_000, 600]
            kept = [heap.take_malloc(size) for size in sizes for _ in range(20)]  # @kept
            freed = [heap.take_malloc(size) for size in sizes for _ in range(3)]  # @freed
            aligned = [heap.take_memalign(4_096, size) for size in sizes]  # @aligned
            for block in freed:
                heap.give_back_unseen(block)
        """,
        libraries=["heap"],
        sample_bytes=sample_bytes,
    )
    sizes = 4_000_001 + 200_000 + 50_000 + 5_000 + 1_000 + 600
    assert (recorded.held("freed"), recorded.blocks("freed")) == (3 * sizes, 18)
    assert (recorded.held("freed", at="end"), recorded.blocks("freed", at="end")) == (0, 0)
    assert (recorded.held("kept", at="end"), recorded.blocks("kept", at="end")) == (20 * sizes, 120)
    assert (recorded.held("aligned", at="end"), recorded.blocks("aligned", at="end")) == (sizes, 6)
    (told,) = hiwater.open(recorded.path).shortcomings
    assert told.startswith("18 blocks, ")


def test_the_c_library_s_own_name_for_free_is_seen(tmp_path: Path) -> None:
    """`__libc_free` is `free` by another name: a slot that is bound to it is exchanged as any pointer in data is."""
    recorded = record(
        tmp_path,
        """
        import signatures
        heap = signatures.load("heap")
        def main():
            block = heap.take_malloc(1_000_003)  # @block
            heap.give_back_by_other_name(block)
        """,
        libraries=["heap"],
    )
    assert (recorded.held("block"), recorded.held("block", at="end")) == (1_000_003, 0)
    assert hiwater.open(recorded.path).shortcomings == []


def test_live_blocks_are_not_taken_for_freed(tmp_path: Path) -> None:
    """Made, freed, grown and shrunk at random, by two threads, and with what the cache left in them: each that is
    live stays."""
    recorded = record(
        tmp_path,
        """
        import random, signatures, threading
        heap = signatures.load("heap")
        kept = []
        def work(seed):
            chance, blocks = random.Random(seed), []
            for _ in range(30_000):
                size = int(chance.choice([40, 150, 900, 3_000, 40_000]) * chance.uniform(0.3, 1.7))
                what = chance.random()
                if what < 0.5 or not blocks:
                    blocks.append((heap.take_malloc(size), size))
                elif what < 0.85:
                    heap.give_back(blocks.pop(chance.randrange(len(blocks)))[0])
                else:
                    at = chance.randrange(len(blocks))
                    blocks[at] = heap.take_realloc(blocks[at][0], size), size
            kept.extend(blocks)
        def main():
            for round in range(3):
                threads = [threading.Thread(target=work, args=(10 * round + n,)) for n in range(2)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
            print(len(kept), sum(size for _, size in kept))
        """,
        libraries=["heap"],
    )
    count, size = map(int, recorded.stdout.split())
    native = [stack for stack in recorded.capture.stacks("end") if stack.kind == "native" and stack.passes("work")]
    # CPython allocates a node of its map of arenas, of 131,072 bytes, when an arena lies where none was before.
    nodes = sum(s.blocks for s in native) - count
    assert nodes in (0, 1, 2)
    assert sum(s.bytes for s in native) == size + nodes * 131_072
    assert hiwater.open(recorded.path).shortcomings == []
