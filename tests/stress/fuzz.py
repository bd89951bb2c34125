"""Fuzzing: captures that were really made, changed in all ways `mutants` knows, are opened and shown in all manners.

`make fuzz` runs it for a minute; `python tests/stress/fuzz.py [SECONDS [SEED]]` does too. Each must give an answer or one clear error, in a few seconds
and a bounded memory; and one changed figure must never change a peak that is still called sound. What does not is kept, and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from mutants import FIELDS, Original

SECONDS = 60.0
MOST_SECONDS = 10
MOST_MEMORY = 600 << 20  # address space beside what the reader's libraries take

PROGRAMS = {
    "objects": """
import threading, json, mmap, time
kept = {}
def work(name):
    for n in range(400):
        kept[name, n] = json.dumps([n] * (n % 50)), bytearray(n)
        if n % 100 == 0: time.sleep(0.03)
threads = [threading.Thread(target=work, args=(name,), name=name) for name in ("first", "second")]
for thread in threads: thread.start()
for thread in threads: thread.join()
area = mmap.mmap(-1, 5_000_000)
def down(n): return [n, down(n - 1)] if n else bytearray(9_000_000)
tree = down(60)
kept.clear()
""",
    "scopes": """
import hiwater, os, time
with hiwater.track("outer"):
    held = [bytearray(10_000) for _ in range(500)]
    with hiwater.track("inner"):
        time.sleep(0.1)
os._exit(0)
""",
    "deep": """
import os, sys
sys.setrecursionlimit(30_000)
kept = []
def down(n):
    kept.append(bytearray(1000 + n))
    if n: (down if n % 3 else aside)(n - 1)
def aside(n):
    kept.append(bytearray(2000))
    if n: down(n - 1)
down(10_000)
os.kill(os.getpid(), 9)
""",
    "killed": "import os, time\nheld = [bytearray(n) for n in range(3000)]\ntime.sleep(0.1)\nos.kill(os.getpid(), 9)",
}
SHOWN = [
    *([f"--format={name}"] for name in ("text", "tree", "table", "lines", "json", "collapsed", "svg", "html", "csv", "speedscope", "pprof")),
    ["--format=text", "--at=end"], ["--format=svg", "--inverted"], ["--format=json", "--by=file"], ["--format=text", "--at=0:9"],
    ["--format=collapsed", "--at=0.05"], ["--format=table", "--by=thread"], ["--format=tree", "--kind=native", "--inverted"], ["--format=tree", "--inverted"], ["--format=collapsed", "--inverted"],
]  # fmt: skip


class Out(io.StringIO):
    """A stream of text with one of bytes below it, as stdout has."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = io.BytesIO()


class TooLong(BaseException):
    """A look at a mutant took longer than any may."""


def make_originals(folder: Path) -> list[Path]:
    made = []
    for name, program in PROGRAMS.items():
        made.append(folder / f"{name}.hiw")
        words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(made[-1]), "-c", program]
        subprocess.run(words, check=False, timeout=60, capture_output=True)
    made.append(folder / "timeline.hiw")
    words = [
        "sample",
        "-o",
        str(made[-1]),
        "--",
        sys.executable,
        "-c",
        "import time; x = bytearray(9_000_000); time.sleep(0.3)",
    ]
    subprocess.run([sys.executable, "-m", "hiwater", *words], check=True, timeout=60, capture_output=True)
    return made


def look(path: Path, random: Random) -> tuple[bool, tuple[int, ...]]:
    """Opens and shows it; gives whether it is called sound, and its figures. Raises what must not be raised."""
    import hiwater
    from hiwater import cli
    from hiwater.errors import HiwaterError

    try:
        capture = hiwater.open(path)
        # One that was killed may be in the midst of an event: its figures are sound within that.
        sound = not capture.problems() and not capture.lost_events and capture.process.ended == "exit"
        figures = (capture.peak.allocated_bytes, capture.peak.allocated_blocks, capture.end.allocated_bytes)
        _ = (
            capture.process,
            capture.facts,
            capture.timeline,
            capture.markers,
            capture.residency_snapshots,
            capture.processes,
            capture.scopes,
        )
        for piece in capture.slices[:50]:
            _ = capture.of_slice(piece).allocated_bytes
    except HiwaterError as error:
        if "\n" in str(error):
            raise AssertionError(f"an error of several lines: {error}") from error
        sound, figures = False, ()
    for words in random.sample(SHOWN, 2):
        said, told = Out(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            code = cli.main(["report", str(path), *words])
        if code not in (0, 2):
            raise AssertionError(f"{words}: exit code {code}: {told.getvalue()}")
        if code == 2 and (said.getvalue() or len(told.getvalue().splitlines()) != 1):
            raise AssertionError(f"{words}: an error that is not one line alone: {told.getvalue()}")
    return sound, figures


def work(folder: Path, seconds: float, seed: int) -> int:
    """The process that looks at mutants: it ends with the first that is wrong, or is killed by it."""

    def too_long(*_: object) -> NoReturn:
        raise TooLong

    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, too_long)
    originals = {path: Original(path.read_bytes()) for path in sorted(folder.glob("*.hiw"))}
    truth = {path: look(path, Random(0)) for path in originals}
    limit_memory()
    until, number, mutant = time.monotonic() + seconds, 0, folder / "mutant"
    while time.monotonic() < until:
        random = Random(f"{seed}/{number}")
        path = random.choice(list(originals))
        if one_figure := random.random() < 0.3:
            changed = bytearray(originals[path].content)
            what = random.choice(FIELDS)(originals[path], changed, random)
            content = bytes(changed)
        else:
            content, what = originals[path].mutant(random)
        mutant.write_bytes(content)
        (folder / "what").write_text(f"{path.name}, {seed}/{number}: {what}")
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        sound, figures = look(mutant, random)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if one_figure and sound and truth[path][0] and figures != truth[path][1]:
            raise AssertionError(f"figures {truth[path][1]} became {figures} and are called sound")
        number += 1
    print(f"{number:,} mutants of {len(originals)} captures, seed {seed}", flush=True)
    return 0


def limit_memory() -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_MEMORY, resource.RLIM_INFINITY))


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--work"]:
        return work(Path(words[1]), float(words[2]), int(words[3]))
    seconds = float(words[0]) if words else SECONDS
    seed = int(words[1]) if len(words) > 1 else time.time_ns() % 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_originals(folder)
        done = subprocess.run([sys.executable, __file__, "--work", name, str(seconds), str(seed)], check=False)
        if done.returncode == 0:
            return 0
        kept = Path(tempfile.gettempdir(), f"hiwater-fuzz-{seed}.hiw")
        shutil.copy(folder / "mutant", kept)
        print(f"FAILED with {done.returncode}: {(folder / 'what').read_text()}; kept as {kept}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
