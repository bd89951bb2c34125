"""Programs of Python alone, and what each of their lines holds at the end as tracemalloc sees it."""

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from children import run_command
from naive_reader import Stack
from recording import Recorded, child_environment

PROGRAMS = {
    "records": """
        def make(number):
            return {"id": number, "name": "user%d" % number, "tags": [number, number + 1]}
        def main():
            global kept
            kept = []
            for number in range(60_000):
                kept.append(make(number))
        """,
    "classes": """
        class Point:
            __slots__ = ("x", "y")
            def __init__(self, x, y):
                self.x = float(x)
                self.y = float(y)
        class Node:
            def __init__(self, value, parent):
                self.value = value
                self.parent = parent
                self.points = [Point(value, value + index) for index in range(3)]
                self.label = f"node {value}"
        def main():
            global kept
            kept, parent = [], None
            for value in range(20_000):
                parent = Node((value + 1) * 10**10, parent)  # no int of a size that the interpreter keeps to use again
                kept.append(parent)
        """,
    "containers": """
        def words():
            for number in range(40_000):
                yield "word-" + str(number * 7919)
        def main():
            global kept
            counts, index, letters = {}, {}, set()
            for word in words():
                counts[word] = counts.get(word, 0) + 1
                index.setdefault(word[-2:], []).append(word)
                letters.add(word[::-1])
            pairs = [(word, count + 1_000_000) for word, count in counts.items()]
            kept = counts, index, letters, pairs, frozenset(letters), b"".join(word.encode() for word in counts)
        """,
    "text": """
        import json
        def main():
            global kept
            document = [{"a": n, "b": str(n), "c": [n] * 5, "d": {"x": n / 3}} for n in range(8_000)]
            text = json.dumps(document)
            again = json.loads(text)
            parts = text.split(",")
            joined = "".join(part.strip() for part in parts)
            kept = document, text, again, parts, joined
        """,
    "sawtooth": """
        def grow(size):
            return [str(number) * 3 for number in range(size)]
        def main():
            global kept
            kept = grow(20_000)
            for _ in range(3):
                passing = grow(100_000)
                del passing
            kept = [kept, grow(5_000)]
        """,
    "closures": """
        def make(number):
            name = "handler-%d-of-many" % number
            def handler(event, default=(number, name)):
                return name, event, default
            return handler
        def main():
            global kept
            kept = {}
            for number in range(20_000):
                kept[number] = make(number)
            kept = kept, [lambda: number for number in range(5_000)]
        """,
    "generators": """
        def count(start):
            total = [start] * 4
            while True:
                total.append(start * 2**40)
                yield total
        def main():
            global kept
            kept = [count(start) for start in range(5_000)]
            for _ in range(3):
                for generator in kept:
                    next(generator)
        """,
    "tracebacks": """
        class Refused(Exception):
            def __init__(self, number):
                super().__init__(f"number {number} is refused")
        def refuse(number):
            raise Refused(number)
        def main():
            global kept
            kept = []
            for number in range(8_000):
                try:
                    refuse(number)
                except Refused as error:
                    kept.append(error)
        """,
    "collections": """
        import collections, heapq
        def main():
            global kept
            queue, heap, groups = collections.deque(), [], collections.defaultdict(list)
            order, numbers = collections.OrderedDict(), bytearray()
            for number in range(20_000):
                queue.append((number + 1000, str(number)))
                heapq.heappush(heap, number * -(2**40))
                groups[number % 250].append(bytes(40 + number % 100))
                order[number] = float(number)
                numbers.append(number % 256)
            for _ in range(5_000):
                queue.popleft()
                heapq.heappop(heap)
            kept = queue, heap, groups, order, numbers
        """,
    "threads": """
        import threading
        def work(number, out):
            made = []
            for index in range(10_000):
                made.append([number, f"{number}/{index}"])
            out.extend(made[::2])
        def main():
            global kept
            kept = []
            for number in range(4):  # one after the other: else each run has another peak
                thread = threading.Thread(target=work, args=(number, kept))
                thread.start()
                thread.join()
        """,
}

# No object is made from one that another line made and left in the interpreter's lists of free objects: tracemalloc
# then names the later line.

# A full collection empties the interpreter's lists of free objects. When it comes depends on what was imported before,
# and so on who is watching: without it both processes make and free exactly the same blocks.
NO_COLLECTION = "import gc\ngc.disable()\n"

UNDER_TRACEMALLOC = """\
import json, os, sys, tracemalloc
sys.path.insert(0, {folder!r})
import program
tracemalloc.start(1)
before = tracemalloc.get_traced_memory()[0]
program.main()
peak = tracemalloc.get_traced_memory()[1] - before
snapshot = tracemalloc.take_snapshot()
tracemalloc.stop()
lines = {{}}
for statistic in snapshot.statistics("lineno"):
    frame = statistic.traceback[0]
    lines[f"{{frame.filename}}:{{frame.lineno}}"] = statistic.size
print(json.dumps({{"peak": peak, "lines": lines}}))
"""


def under_tracemalloc(folder: Path, program: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(program)
    (folder / "driver.py").write_text(UNDER_TRACEMALLOC.format(folder=str(folder)))
    done = run_command([sys.executable, folder / "driver.py"], env=child_environment(), check=True)
    found: dict[str, Any] = json.loads(done.stdout.replace(str(folder), "@"))
    return found


def by_line(recorded: Recorded, stacks: list[Stack]) -> dict[str, int]:
    """Bytes by innermost line. tracemalloc sees the raw domain too, which for the recorder is malloc."""
    sums: dict[str, int] = {}
    for stack in stacks:
        if stack.kind in ("python", "native") and stack.leaf:
            place = f"{stack.leaf.file}:{stack.leaf.line}".replace(str(recorded.program.parent), "@")
            sums[place] = sums.get(place, 0) + stack.bytes
    return sums


def text_of(name: str) -> str:
    """A program as a module."""
    return NO_COLLECTION + textwrap.dedent(PROGRAMS[name])


def lines_that_differ(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What both say of a line that holds 10,000 bytes at least, where that is not the same to a hundredth: below, a
    handful of interpreter internals is more."""
    return {
        place: (ours.get(place, 0), size)
        for place, size in theirs.items()
        if size >= 10_000 and ours.get(place, 0) != pytest.approx(size, rel=0.01, abs=1_000)
    }
