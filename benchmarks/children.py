"""What it costs to record the children of a program: processor time of one, and bytes on the disk.

    python benchmarks/children.py                         500 children of each kind
    python benchmarks/children.py --check                 exit code 1 if a limit is exceeded
    python benchmarks/children.py --count 10000 forked    `make bench-children`

A forked child holds 100 small blocks for 5 ms. An executed one is an interpreter that does nothing. Each figure is the
processor time of parent and child, user and system, in the cheapest batch of ten: on a busy machine the others take
more. "without" is `hiwater run --no-children`, so the difference is what recording the children adds. The disk's figure
counts the blocks of all files of the run's folder.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 10
LIMIT_MS = {"forked": 1.0}
LIMIT_MIB = 64


def processor_time():
    """Seconds of this process and of its children that ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def fork():
    """Make a child that holds a little for 5 ms."""
    child = os.fork()
    if child == 0:
        held = [bytearray(100) for _ in range(100)]
        time.sleep(0.005)
        os._exit(len(held) & 1)
    os.waitpid(child, 0)


def execute():
    """Start an interpreter that does nothing."""
    subprocess.run([sys.executable, "-c", "pass"], check=True)


KINDS = {"forked": fork, "executed": execute}


def measure(kind, count):
    """The program that is recorded: prints the milliseconds of one child."""
    best = float("inf")
    for _ in range(max(1, count // BATCH)):
        before = processor_time()
        for _ in range(BATCH):
            KINDS[kind]()
        best = min(best, (processor_time() - before) / BATCH)
    print(json.dumps(best * 1e3))


def run(kind, count, *options):
    """Milliseconds of one child, and the bytes on the disk of the run's folder."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "run.hiw")
        done = subprocess.run(
            [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(capture), *options, __file__, "--measure", kind,
                str(count)],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        disk = sum(path.stat().st_blocks * 512 for path in Path(f"{capture}.d").glob("*"))
        return json.loads(done.stdout), disk


def main():
    """Measure what was asked for and print a table."""
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description="Measures what recording children costs.")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"{', '.join(KINDS)}")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    arguments = parser.parse_args()
    is_sound = True
    print(f"{'':10}{'without':>10}{'recorded':>10}{'one adds':>10}   on the disk, of {arguments.count:,}")
    for kind in arguments.kinds:
        without, _ = run(kind, min(arguments.count, 500), "--no-children")
        recorded, disk = run(kind, arguments.count)
        added = recorded - without
        print(f"{kind:10}{without:7.2f} ms{recorded:7.2f} ms{added:7.2f} ms   {disk / 2**20:.1f} MiB", flush=True)
        is_sound &= added <= LIMIT_MS.get(kind, float("inf")) and disk <= LIMIT_MIB << 20
    return 0 if is_sound or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
