"""The product's reader and the naive one, over the same captures: every stack of one is a stack of the other."""

from collections import Counter

import pytest

import hiwater
import naive_reader
from recording import Recorded, needs_engine, record

pytestmark = needs_engine

PROGRAMS = {
    "objects": """
        import json
        def build(depth):
            return [build(depth - 1) for _ in range(4)] if depth else {str(n): [n] for n in range(300)}
        def main():
            global kept
            document = build(4)
            kept = document, json.loads(json.dumps(document)), {number: str(number) for number in range(1_000)}
        """,
    "everything at once": """
        import mmap, signatures, threading
        heap, threads = signatures.load("heap"), signatures.load("threads")
        def work(number):
            heap.take_malloc(number * 1_000)
            kept.append({n: str(n) for n in range(number)})
            heap.give_back(heap.take_malloc(5_000_000))
        kept = []
        def main():
            threads.allocate_in_threads(10, 10, 100)
            kept.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            workers = [threading.Thread(target=work, args=(n,), name=f"worker {n} \\u00fc") for n in range(20)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
            big = bytearray(30_000_000)
            del big
        """,
    "many stacks": """
        def main():
            for number in range(20_000):
                namespace = {}
                exec(f"def f{number}():\\n    return [{number}]", namespace)
                kept.append(namespace[f"f{number}"]())
        kept = []
        """,
}


@pytest.fixture(scope="module", params=list(PROGRAMS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("two-readers")
    return record(folder, PROGRAMS[request.param], libraries=["heap", "threads"])


@pytest.mark.parametrize("at", ["peak", "end"])
def test_the_same_stacks(recorded: Recorded, at: str) -> None:
    capture = hiwater.open(recorded.path)
    ours = Counter(
        (stack.kind, stack.thread, tuple((f.function, f.file, f.line) for f in stack.frames), stack.bytes, stack.blocks)
        for stack in getattr(capture, at).stacks
    )
    theirs = Counter(
        (stack.kind, stack.thread, tuple((f.function, f.file, f.line) for f in stack.frames), stack.bytes, stack.blocks)
        for stack in recorded.capture.stacks(at)
        if stack.kind in naive_reader.COUNTED
    )
    assert len(theirs) >= 5
    assert ours == theirs


def test_the_same_sums(recorded: Recorded) -> None:
    capture = hiwater.open(recorded.path)
    assert capture.problems() == []
    assert capture.peak.allocated_bytes == recorded.capture.peak_bytes
    assert capture.peak.allocated_blocks == recorded.capture.peak_blocks
    assert capture.end.allocated_bytes == recorded.capture.header["live_bytes"]
    assert capture.process.ended == "exit"
    assert len(capture.timeline) == len(recorded.capture.tables["timeline"])
