#!/usr/bin/env python3
"""Record programs whose memory is known, with the hiwater of this interpreter, and compare: for an installation that
has no tests, on any system. `--figures` prints what each line held, to compare two builds.

A figure is known from the program: so many objects of such a size. What it may have beside them is the interpreter's.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
# Each function holds what the table below says; `held` keeps it until the end.
PROGRAM = """
import mmap, os, sys, threading
held = []

def blocks():
    held.append([bytearray(1 << 20) for _ in range(50)])
def objects():
    held.append([[] for _ in range(100_000)])
def texts():
    held.append([bytes(967) for _ in range(10_000)])
def table():
    held.append({number: None for number in range(1000, 101_000)})
def grown():
    grows = bytearray()
    for _ in range(8192):
        grows += bytes(1024)
    held.append(grows)
def shrunk():
    shrinks = bytearray(8 << 20)
    del shrinks[1 << 20:]
    held.append(shrinks)
def freed():
    for _ in range(200):
        bytearray(1 << 20)
def mapped():
    held.append(mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
def shared():
    held.append(mmap.mmap(-1, 4 << 20))
def unmapped():
    mmap.mmap(-1, 16 << 20).close()
def deep(depth=400):
    return deep(depth - 1) if depth else held.append(bytearray(2 << 20))
def generated():
    held.extend(bytearray(1 << 20) for _ in range(3))
def in_thread():
    held.append(bytearray(3 << 20))
def by_threads():
    def churn():
        kept = []
        for turn in range(20_000):
            kept.append(bytes(400))
            if len(kept) > 100:
                kept.clear()
    threads = [threading.Thread(target=work) for work in (in_thread, churn) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
def passed_on():
    made = []
    maker = threading.Thread(target=lambda: made.extend(bytearray(10_000) for _ in range(1000)))
    maker.start(); maker.join()
    made.clear()

for case in (
    blocks, objects, texts, table, grown, shrunk, freed, mapped, shared, unmapped, deep, generated, by_threads,
    passed_on,
):
    case()
held.append([bytearray(1 << 20) for _ in range(20)])  # the peak is here
"""
# Function: the bytes that it holds at the peak.
KNOWN = {
    "blocks": 50 * MIB,
    "objects": 100_000 * (56 + 8),
    "texts": 10_000 * (1000 + 8),
    "table": 100_000 * 28 + 5_242_984,
    "grown": 8 * MIB,
    "shrunk": MIB,
    "freed": 0,
    "mapped": 8 * MIB,
    "shared": 4 * MIB,
    "unmapped": 0,
    "deep": 2 * MIB,
    "generated": 3 * MIB,
    "in_thread": 12 * MIB,
    "churn": 0,
    "passed_on": 0,
}
# What bytearrays, lists and dicts allocate ahead, and the interpreter beside them: a share and a number of bytes.
BESIDE, BESIDE_BYTES = 0.125, 60_000
CHILD = "def child():\n    return bytearray(16 << 20)\nheld = child()\n"
FORKS = f"import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nelse:\n    exec({CHILD!r})\n    os._exit(0)\n"
STARTS = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}], check=True)\n"
KILLED = f"import os, signal\n{CHILD}os.kill(os.getpid(), signal.SIGKILL)\n"


def hiwater(*words: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hiwater", *words], capture_output=True, text=True, check=False, timeout=600
    )
    return done.stdout


def held(capture: Path) -> dict[str, int]:
    """What each function held at the peak, with all that it called."""
    largest: dict[str, int] = {}  # each module has its `<module>`
    for row in csv.DictReader(io.StringIO(hiwater("report", capture, "--by", "function", "--format", "csv"))):
        largest[row["function"]] = max(int(row["total_bytes"]), largest.get(row["function"], 0))
    return largest


def recorded(folder: Path, name: str, program: str, *options: str) -> Path:
    """The capture of a program."""
    (folder / f"{name}.py").write_text(program)
    hiwater("run", "-q", *options, "-o", folder / f"{name}.hiw", folder / f"{name}.py")
    return folder / f"{name}.hiw"


def figures(folder: Path) -> Iterator[tuple[str, int, int]]:
    """The name of each, what is known, and what hiwater says."""
    exact = held(recorded(folder, "exact", PROGRAM))
    for name, known in KNOWN.items():
        yield name, known, exact.get(name, 0)
    sampled = held(recorded(folder, "sampled", PROGRAM, "--sample", "64KiB"))
    yield "sampled", exact.get("<module>", 0), sampled.get("<module>", 0)
    yield "killed", 16 * MIB, held(recorded(folder, "killed", KILLED)).get("child", 0)
    for name, program in (("forked", FORKS), ("started", STARTS)):
        children = list(folder.glob(f"{recorded(folder, name, program).name}.d/*.hiw"))
        yield name, 16 * MIB, held(children[0]).get("child", 0) if len(children) == 1 else 0


def is_right(known: int, told: int) -> bool:
    return known * (1 - BESIDE / 2) <= told <= known * (1 + BESIDE) + BESIDE_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares what hiwater records of known programs with what is known.")
    parser.add_argument("--figures", action="store_true", help="print the figures as JSON, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hiwater-probe-") as folder:
        told = list(figures(Path(folder)))
    wrong = [row for row in told if not is_right(*row[1:])]
    for name, known, said in wrong:
        print(f"{name}: {said:,} bytes, and {known:,} are known")
    if arguments.figures:
        print(json.dumps({name: said for name, _, said in told}))
    print(f"{len(told) - len(wrong)} of {len(told)} figures are right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
