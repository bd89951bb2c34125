"""How long a capture with a million distinct stacks takes to open and to render.

    python benchmarks/reading.py [--stacks N] [--folder DIR]

Prints wall seconds and peak resident memory of one fresh `hiwater report` process for each format (start of Python and
reading of the file included), best of the runs: once into a file, where the disk has its share for a json of 1.5 GB,
and once into /dev/null. The stacks form a tree of calls, 19 frames deep on average; this is the largest case, not a
usual one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from capture_builder import DTYPES, THREAD, Recording, assemble  # noqa: E402 - the tests' helpers are no package

FUNCTIONS = 400
PROGRAM = """
import argparse, sys
from hiwater.cli import report
parser = argparse.ArgumentParser()
report.add_arguments(parser)
sys.exit(report.run(parser.parse_args()))
"""


def capture_of(stacks: int, seed: int = 7) -> bytes:
    """A capture with this many distinct call paths that each hold something, laid out by whole arrays."""
    random = np.random.default_rng(seed)
    small = Recording()
    small.fact("program", "million.py")
    thread = small.code("MainThread", kind=THREAD)
    for index in range(FUNCTIONS):
        small.code(f"function_{index}", f"/home/user/project/package_{index % 20}/module_{index % 50}.py", 1)
    tables = small.tables()
    nodes = np.zeros(stacks + 2, DTYPES["nodes"])
    nodes["code"][1] = thread
    # A tree that widens by 2 on average: node i hangs under a node near i / 2, as when calls fan out.
    number = np.arange(2, len(nodes))
    nodes["parent"][2:] = np.maximum(1, number // 2 - random.integers(0, 3, stacks))
    nodes["code"][2:] = thread + 1 + random.integers(0, FUNCTIONS, stacks)
    nodes["line"][2:] = random.integers(1, 60, stacks)
    accounts = np.zeros(stacks + 1, DTYPES["accounts"])
    accounts["node"][1:] = number
    accounts["kind"][1:] = random.integers(0, 2, stacks)
    accounts["live_bytes"][1:] = random.integers(16, 100_000, stacks)
    accounts["live_blocks"][1:] = 1 + random.integers(0, 50, stacks)
    accounts["total_bytes"], accounts["total_blocks"] = accounts["live_bytes"], accounts["live_blocks"]
    tables.update(nodes=nodes, accounts=accounts, account_peaks=np.zeros(stacks + 1, DTYPES["account_peaks"]))
    live, blocks = int(accounts["live_bytes"].sum()), int(accounts["live_blocks"].sum())
    header = {
        **small.header, "live_bytes": live, "slice_peak_bytes": live, "live_blocks": blocks,
        "slice_peak_blocks": blocks, "generation": 2, "slice_peak_ns": 10**9, "ended_ns": 2 * 10**9, "state": 2,
        "exit_code": 0,
    }  # fmt: skip
    return assemble(header, tables, shuffle=1)


def make(path: Path, stacks: int) -> None:
    path.write_bytes(capture_of(stacks))


def measure(capture: Path, output_format: str, output: Path) -> tuple[float, int, int]:
    """(wall seconds, peak resident bytes, bytes written) of one report in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, str(capture), "--format", output_format, "-o", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = time.perf_counter()
    with subprocess.Popen(command, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"report --format {output_format} failed")
    return seconds, usage.ru_maxrss * 1024, output.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the capture and the reports go (default: temporary)"
    )
    parser.add_argument("--format", action="append", choices=("text", "json", "table", "tree", "collapsed", "svg"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        capture, output = Path(folder, "million.hiw"), Path(folder, "report")
        # Made in a process of its own: a child's peak begins at what its parent holds when it is started.
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(capture, arguments.stacks))
        maker.start()
        maker.join()
        print(
            f"{arguments.stacks:,} stacks, a capture of {capture.stat().st_size / 2**20:.0f} MiB, "
            f"{os.cpu_count()} cores"
        )
        print(f"{'format':<10} {'to a file':>10} {'to nothing':>10} {'peak MiB':>9} {'output MiB':>11}")
        for output_format in arguments.format or ("text", "json", "table", "tree", "collapsed", "svg"):
            runs = [measure(capture, output_format, output) for _ in range(arguments.runs)]
            seconds, peak, written = min(runs)
            unwritten = min(measure(capture, output_format, Path(os.devnull))[0] for _ in range(arguments.runs))
            print(
                f"{output_format:<10} {seconds:>8.2f} s {unwritten:>8.2f} s {peak / 2**20:>9.0f} "
                f"{written / 2**20:>11.1f}"
            )


if __name__ == "__main__":
    main()
