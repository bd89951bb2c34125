"""How far sampled figures are off: every stack that holds 2 % of the peak, and the whole, over many draws, against a
recording of all.

    python benchmarks/accuracy.py [--seeds N] [--sample SIZE] [program …]

Prints a table; exits 1 when less than 99 % of the stacks are within three standard errors, or a whole is off by more
than 2 %.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import hiwater

PROGRAMS = Path(__file__).parent / "programs"
LEAST_SHARE, MOST_ERRORS, MOST_OFF, LEAST_WITHIN = 0.02, 3, 0.02, 0.99


def record(program, folder, *options):
    """Record one run, and return the capture."""
    path = Path(folder) / "c.hiw"
    words = [sys.executable, "-m", "hiwater", "run", "-q", *options, "-o", str(path), str(program)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    return hiwater.open(path)


def stacks(capture):
    """{(kind, thread, frames): (bytes, variance)} at the peak; runs differ in the order of threads' names only."""
    sums = defaultdict(lambda: [0, 0.0])
    for stack in capture.peak.stacks:
        entry = sums[stack.kind, stack.frames]
        entry[0] += stack.bytes
        entry[1] += stack.standard_error_bytes**2
    return sums


def compare(program, arguments, folder):
    """Return (whole, largest error of it, stacks looked at, of which within their errors) over all seeds."""
    exact = record(program, folder)
    whole, truth = exact.peak.allocated_bytes, stacks(exact)
    large = {key: figures[0] for key, figures in truth.items() if figures[0] >= LEAST_SHARE * whole}
    off, seen, within = 0.0, 0, 0
    for seed in range(1, arguments.seeds + 1):
        capture = record(program, folder, "--sample", arguments.sample, "--sample-seed", str(seed))
        off = max(off, abs(capture.peak.allocated_bytes - whole) / whole)
        found = stacks(capture)
        for key, size in large.items():
            estimate, variance = found[key]
            seen += 1
            within += abs(estimate - size) <= MOST_ERRORS * variance**0.5 + 0.001 * size  # runs differ by that much
    return whole, off, seen, within


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=["list_objects", "pandas_etl"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sample", default="64KiB")
    arguments = parser.parse_args()
    good = True
    print("| program | peak, MiB | whole off by at most | stacks ≥ 2 % | within 3 standard errors |")
    print("|---|---:|---:|---:|---:|")
    for name in arguments.programs:
        with tempfile.TemporaryDirectory() as folder:
            whole, off, seen, within = compare(PROGRAMS / f"{name}.py", arguments, folder)
        print(f"| {name} | {whole / 2**20:.0f} | {off:.2%} | {seen} | {within / seen:.1%} |", flush=True)
        good = good and off <= MOST_OFF and within >= LEAST_WITHIN * seen
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
