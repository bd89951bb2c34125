"""Two recorded threads that do nothing but allocate and free, without the GIL, against two recorded processes of one
thread each.

    python benchmarks/two_threads.py [--rounds 7]

One lock keeps the books of all threads; this is where it could be felt. Exits 1 where threads reach less than 0.8 of
the processes' speed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LEAST_SHARE = 0.8
BLOCKS = 20_000_000
PROGRAM = """
import ctypes, sys, threading, time
churn = ctypes.CDLL(sys.argv[1])
threads = [threading.Thread(target=lambda: churn.malloc_free(ctypes.c_size_t(int(sys.argv[3]))))
    for _ in range(int(sys.argv[2]))]
begun = time.perf_counter()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.perf_counter() - begun)
"""


def start(folder: Path, name: str, threads: int, options: list[str]) -> subprocess.Popen[str]:
    words = ["-m", "hiwater", "run", "-q", *options, "-o", str(folder / f"{name}.hiw"), "-c", PROGRAM]
    arguments = [str(folder / "churn.so"), str(threads), str(BLOCKS)]
    return subprocess.Popen([sys.executable, *words, *arguments], stdout=subprocess.PIPE, text=True)


def seconds(running: list[subprocess.Popen[str]]) -> float:
    """The mean of what the processes say they took. Raises ChildProcessError when one fails."""
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise ChildProcessError("a recorded program failed")
    return statistics.mean(map(float, said))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    broken = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = folder / "churn.so"
        subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", library, HERE / "churn.c"], check=True, env=os.environ)
        for mode, options in (("exact", []), ("sampled", ["--sample", "64KiB"])):
            shares = []
            for _ in range(rounds):
                together = seconds([start(folder, "both", 2, options)])
                apart = seconds([start(folder, f"one{number}", 1, options) for number in range(2)])
                shares.append(apart / together)
            share = statistics.median(shares)
            broken += share < LEAST_SHARE
            print(f"{mode}: two threads reach {share:.2f} of the speed of two processes (at least {LEAST_SHARE})")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
