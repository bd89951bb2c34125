"""What the pytest plugin costs on the test suites of other projects, and whether it changes their results.

    python benchmarks/pytest_plugin.py FOLDER_WITH_TESTS... [--rounds 5]

Runs each suite without the plugin, with it (nothing is marked), with a limit for every test, and with --hiwater, in turn. It prints the
ratio of CPU time (user and system, the median of the rounds) to the run without, and fails if an outcome of a test differs.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

WAYS = {
    "without the plugin": ["-p", "no:hiwater"],
    "markers only": ["-p", "hiwater"],
    "a limit for every test": ["-p", "hiwater", "--hiwater-limit", "peak=1TiB"],
    "--hiwater": ["-p", "hiwater", "--hiwater"],
}


def run(folder, options, captures):
    """Return (CPU seconds, outcome of each test by name)."""
    if "--hiwater" in options:
        options = [*options, "--hiwater-captures", captures]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:monitor", *options, "."],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "1000"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
    lines = sorted(line.partition(" - ")[0] for line in done.stdout.splitlines() if line.startswith(words))
    if not lines:
        sys.exit(done.stdout[-2000:] + done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, lines


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
                    cpu, outcomes = run(folder, options, captures)
                    seconds[way].append(cpu)
                    expected = expected or outcomes
                    if outcomes != expected:
                        differs = True
                        print(f"{folder}: {way}: other results: {sorted(set(outcomes) ^ set(expected))[:5]}")
        plain = statistics.median(seconds["without the plugin"])
        print(f"{folder}: {len(expected)} results, {plain:.2f} s CPU without the plugin")
        for way in list(WAYS)[1:]:
            over = (statistics.median(seconds[way]) - plain) / len(expected) * 1e6
            print(f"  {way:24} {statistics.median(seconds[way]) / plain:.3f}  {over:+8.0f} µs a test")
    sys.exit(differs)


if __name__ == "__main__":
    main()
