"""What the pytest plugin costs on the test suites of other projects, and whether it changes their results.

    python benchmarks/pytest_plugin.py FOLDER_WITH_TESTS... [--rounds 5]

Runs each suite without the plugin, with it (nothing is marked), with a limit for every test, and with --hiwater, in
turn. It prints the ratios of CPU time (user and system) and of wall time to the run without, each the median of the
rounds, and fails if an outcome of a test differs.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

WAYS = {
    "without the plugin": ["-p", "no:hiwater"],
    "markers only": ["-p", "hiwater"],
    "a limit for every test": ["-p", "hiwater", "--hiwater-limit", "peak=1TiB"],
    "--hiwater": ["-p", "hiwater", "--hiwater"],
}


def run(folder, options, captures):
    """Return (CPU seconds, wall seconds, outcome of each test by name)."""
    if "--hiwater" in options:
        options = [*options, "--hiwater-captures", captures]
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:monitor", *options, "."],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "1000"},
    )  # fmt: skip
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
    lines = sorted(line.partition(" - ")[0] for line in done.stdout.splitlines() if line.startswith(words))
    if not lines:
        sys.exit(done.stdout[-2000:] + done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, lines


def medians(pairs):
    """The median of the first and of the second of each pair."""
    return tuple(map(statistics.median, zip(*pairs, strict=True)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    differs = False
    for folder in asked.folders:
        seconds = {way: [] for way in WAYS}
        expected = None
        with tempfile.TemporaryDirectory() as captures:
            for _ in range(asked.rounds):
                for way, options in WAYS.items():
                    cpu, wall, outcomes = run(folder, options, captures)
                    seconds[way].append((cpu, wall))
                    expected = expected or outcomes
                    if outcomes != expected:
                        differs = True
                        print(f"{folder}: {way}: other results: {sorted(set(outcomes) ^ set(expected))[:5]}")
        cpu, wall = medians(seconds["without the plugin"])
        print(f"{folder}: {len(expected)} results; without the plugin {cpu:.2f} s CPU, {wall:.2f} s")
        for way in list(WAYS)[1:]:
            its_cpu, its_wall = medians(seconds[way])
            over = (its_cpu - cpu) / len(expected) * 1e6
            print(f"  {way:24} CPU {its_cpu / cpu:.3f}  wall {its_wall / wall:.3f}  {over:+8.0f} µs CPU a test")
    sys.exit(differs)


if __name__ == "__main__":
    main()
