"""Programs that are killed at any moment, and many readers at once of one that runs: no capture is lost, and the
program notices nobody. `python tests/stress/kills.py [KILLS [READERS]]`.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SECONDS = 300
LONGEST_LIFE = 0.8
PROGRAM = """
import select
kept = []
print("begun", flush=True)
while not select.select([0], [], [], 0)[0]:  # until its input is closed
    kept += [bytes(2000) for _ in range(1000)]
    if len(kept) > 20_000:
        del kept[:]
print("ended")
"""


def start(capture: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", capture, "-c", PROGRAM]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def report(capture: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hiwater", *(words or ("report", "--format", "json")), capture]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def kill_one(seed: int, folder: Path) -> str:
    """Kill a program at a random moment after its first line. What became of the capture: "" if it can be read."""
    capture = folder / f"{seed}.hiw"
    with start(capture) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, LONGEST_LIFE))
        process.send_signal(signal.SIGKILL)
    done = report(capture)
    capture.unlink()
    return "" if done.returncode == 0 else done.stderr.strip()


def read_at_once(readers: int, folder: Path) -> list[str]:
    """Read a recording that goes on with so many readers at once. What went wrong."""
    capture = folder / "read.hiw"
    process = start(capture)
    assert process.stdout is not None
    process.stdout.readline()
    verbs = [("live", "--once"), ("report", "--format", "json"), ("snapshot", "-q", "-o"), ("report",)]

    def read(number: int) -> str:
        verb = verbs[number % len(verbs)]
        words = (*verb, str(folder / f"copy{number}.hiw")) if verb[-1] == "-o" else verb
        done = report(capture, *words)
        return "" if done.returncode == 0 else f"{' '.join(verb)}: {done.stderr.strip()}"

    with ThreadPoolExecutor(readers) as pool:
        wrong = [problem for problem in pool.map(read, range(readers)) if problem]
    out, err = process.communicate(timeout=SECONDS)
    if (process.returncode, out, err) != (0, "ended\n", ""):
        wrong.append(f"the program ended with {process.returncode}: {out!r} {err!r}")
    return wrong if report(capture).returncode == 0 else [*wrong, "its capture cannot be read"]


def main(kills: int = 100, readers: int = 40) -> int:
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        lost = [problem for seed in range(kills) if (problem := kill_one(seed, Path(name)))]
        print(f"{kills} kills: {len(lost)} captures lost, {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        wrong = read_at_once(readers, Path(name))
        print(f"{readers} readers at once: {len(wrong)} went wrong, {time.monotonic() - began:.0f} s")
    print(*lost, *wrong, sep="\n", end="")
    return 1 if lost or wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
