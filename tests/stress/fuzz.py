"""Fuzzing: captures and the files around them, changed in all ways that `mutants` and `parts` know, are read by every
verb and written in every format.

`make fuzz` runs 100,000 mutants of a random seed; `python tests/stress/fuzz.py [COUNT [SEED]]` does too. Each must give
an answer, or one clear line and exit code 2, within 5 s of processor time and 512 MiB; and one changed figure must
never change a peak that is still called sound. What does not is kept and named, and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import parts
from capture_builder import KINDS
from example_captures import program, recording_of, small
from hiwater._os import process_identity
from hiwater.capture import attachments, run_index
from hiwater.cli import verbs
from messages import messages_to
from mutants import FIELDS, Original
from snapshot_double import Allocator, frame

COUNT = 100_000
MOST_SECONDS, MOST_BYTES = 5, 512 << 20
MOST_WAIT_SECONDS = 120  # of the clock, on a busy machine: what waits for something waits for ever
MOST_FAILURES = 20

PROGRAMS = {
    "objects": """
import threading, json, mmap, time, hiwater
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
for n in range(4):
    tree = down(60)
    hiwater.mark("round")
    kept[n] = bytearray(300_000)
kept.clear()
""",
    "phases": """
import hiwater, os, time
with hiwater.track("outer"):
    held = [bytearray(10_000) for _ in range(500)]
    with hiwater.track("inner"):
        time.sleep(0.1)
    hiwater.holders()
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
down(800)
os.kill(os.getpid(), 9)
""",
    "killed": "import os, time\nheld = [bytearray(n) for n in range(3000)]\ntime.sleep(0.1)\nos.kill(os.getpid(), 9)",
    "family": """
import os, subprocess, sys
held = bytearray(3_000_000)
for n in range(3):
    if os.fork() == 0:
        more = bytearray((n + 1) * 2_000_000)
        os._exit(0)
    os.wait()
subprocess.run([sys.executable, "-c", "x = bytearray(4_000_000)"])
subprocess.run([sys.executable, "-S", "-c", "pass"])
""",
}
WATCHED = "import time, os\nx = bytearray(9_000_000)\nif os.fork() == 0: time.sleep(0.2); os._exit(0)\ntime.sleep(0.3)"

MUTANT, ORIGINAL, OUT = "MUTANT", "ORIGINAL", "OUT"
FORMATS = (
    "text",
    "markdown",
    "tree",
    "table",
    "lines",
    "json",
    "collapsed",
    "svg",
    "html",
    "csv",
    "speedscope",
    "pprof",
)
VIEWS = [
    *(["report", MUTANT, f"--format={name}", "-o-"] for name in FORMATS),
    ["report", MUTANT], ["report", MUTANT, "--full"], ["report", MUTANT, "--full", "--stacks"],
    ["report", MUTANT, "--kept"],
    ["report", MUTANT, "--at=end"], ["report", MUTANT, "--at=0:9", "--full"], ["report", MUTANT, "--at=oom"],
    ["report", MUTANT, "--format=svg", "--inverted", "-o-"], ["report", MUTANT, "--format=json", "--by=file"],
    ["report", MUTANT, "--format=collapsed", "--at=0.05"], ["report", MUTANT, "--format=table", "--by=thread"],
    ["report", MUTANT, "--format=tree", "--kind=native", "--inverted"],
    ["report", MUTANT, "--format=collapsed", "--inverted"],
    ["report", MUTANT, "--kind=device"], ["report", MUTANT, "--format=html", "--source=all", "-o-"],
    ["report", MUTANT, ORIGINAL],
    ["diff", ORIGINAL, MUTANT], ["diff", MUTANT, ORIGINAL, "--format=json"],
    ["diff", ORIGINAL, MUTANT, "--format=markdown", "--by=line"],
    ["diff", ORIGINAL, MUTANT, "--format=html", "-o-"], ["leaks", MUTANT], ["leaks", MUTANT, "--format=json"],
    ["check", MUTANT, "--peak", "1GiB"], ["check", MUTANT, "--baseline", ORIGINAL], ["holders", MUTANT],
    ["holders", MUTANT, "--format=json"],
    ["live", "--once", MUTANT], ["live", "--once", "--view=processes", MUTANT],
    ["report", MUTANT, "--format=timeline", "-o-"],
    ["merge", "-q", "-o", OUT, MUTANT, ORIGINAL], ["snapshot", "-q", MUTANT, "-o", OUT],
]  # fmt: skip
FINDS = {"check": (1,), "leaks": (1, 3), "diff": (1,)}  # exit codes where something was found, or too little is known
UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def build_originals(folder: Path) -> None:
    """Captures of pretended programs, the same every time, with every table: of one process, of a killed one, of one
    that was watched from outside, of a run of several processes, merged, with a history of a device, and such a
    history."""
    random = Random(1)
    events = [
        (random.randrange(31), random.randrange(len(KINDS)), random.randrange(1, 5000), random.randrange(10))
        for _ in range(150)
    ]
    made = {
        "program.hiw": program(),
        "slices.hiw": recording_of(events),
        "killed.hiw": recording_of(events[:40]),
        "timeline.hiw": small(),
    }
    made["killed.hiw"].header.update(state=1, ended_ns=0, exit_code=-1)
    made["timeline.hiw"].fact("recorder", "sample")
    made |= {
        "device.hiw": small(),
        "family.hiw": small(),
        "family.hiw.d/5-1.hiw": small(),
        "family.hiw.d/6-2.hiw": program(),
    }
    (folder / "family.hiw.d").mkdir()
    for number, (name, recording) in enumerate(made.items()):
        recording.header.update(pid=4000 + number, process_start_ticks=number, started_unix_ns=10**18 + number)
        for key, value in {
            "host": "here",
            "ppid": str(3999 + number),
            "cwd": str(folder),
            "started_by": "fork",
            "run_id": name[:6],
        }.items():
            recording.fact(key, value)
        (folder / name).write_bytes(parts.complete(recording.to_bytes()))
    rows = [
        {"event": "ended", "pid": 70, "start_ticks": 1, "ppid": 4005, "started_by": "fork", "capture": "",
            "exit_code": 0, "started_unix_ns": 10**18,
         **dict.fromkeys(run_index._SIZES, 1 << 20)},
        {"event": "started", "pid": 71, "ppid": 4005, "at_unix_ns": 10**18, "program": "python", "why": "-S"},
        {"event": "killed", "pid": 4006, "ppid": 4005, "at_unix_ns": 10**18 + 50, "signal": 9},
    ]  # fmt: skip
    (folder / "family.hiw.d" / "index.jsonl").write_bytes(
        b"".join(json.dumps(row).encode().ljust(511) + b"\n" for row in rows)
    )
    _add_others(folder, folder / "device.hiw")


def record_originals(folder: Path) -> None:
    """The same of programs that really run."""
    for name, text in PROGRAMS.items():
        _hiwater("run", "-q", "-o", f"{folder}/{name}.hiw", "-c", text)
    _hiwater("sample", "-o", f"{folder}/timeline.hiw", "--", sys.executable, "-c", WATCHED)
    shutil.copy(folder / "killed.hiw", folder / "device.hiw")
    for path in [*folder.glob("*.hiw"), *folder.glob("*.d/*.hiw")]:  # small extents make small mutants
        path.write_bytes(parts.Parts(path.read_bytes(), extent_bytes=16384).to_bytes())
    _add_others(folder, folder / "device.hiw")


def _add_others(folder: Path, device: Path) -> None:
    """What is made of captures: a merged one, one with a history attached, and that history."""
    _hiwater("merge", "-q", "-o", f"{folder}/merged.hiw", f"{folder}/family.hiw", f"{folder}/killed.hiw")
    history = pickle.dumps(_history())
    (folder / "snapshot.pickle").write_bytes(history)
    attachments.append(str(device), {"torch.pickle": history, "oom.json": b'{"requested_bytes": 5}'})


def _hiwater(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "hiwater", *words], check=False, timeout=300, capture_output=True)


def _history() -> object:
    allocator = Allocator()
    held = [allocator.alloc(1000 * number, [frame("step", number % 7), frame("main", 3)]) for number in range(1, 60)]
    for address in held[::3]:
        allocator.free(address)
    return allocator.snapshot()


class Originals:
    """Their contents, and what is done with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.captures = {
            path: Original(path.read_bytes()) for path in sorted(folder.glob("*.hiw")) if path.name != "merged.hiw"
        }
        self.run = folder / "family.hiw"
        self.children = sorted((folder / "family.hiw.d").glob("*.hiw"))

    def mutant(self, number: int, seed: int, place: Path) -> Mutant:
        """Write mutant `number` below `place`."""
        random = Random(f"{seed}/{number}")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        kind = random.choices(("figure", "bytes", "parts", "merged", "run", "history"), (15, 20, 45, 7, 9, 4))[0]
        made: Mutant = getattr(self, f"_{kind}")(random, place)
        made.what = f"{seed}/{number}, {made.original.name}: {made.what}"
        made.view = random.choice(VIEWS)
        return made

    def _capture(self, random: Random) -> Path:
        """One of the captures: of the larger ones, which take longer, fewer mutants."""
        return random.choices(
            list(self.captures), [1 / (100_000 + len(one.content)) for one in self.captures.values()]
        )[0]

    def _write(self, place: Path, original: Path, made: tuple[bytes, str]) -> Mutant:
        (place / original.name).write_bytes(made[0])
        return Mutant(place / original.name, original, made[1])

    def _figure(self, random: Random, place: Path) -> Mutant:
        path = self._capture(random)
        changed = bytearray(self.captures[path].content)
        what = random.choice(FIELDS)(self.captures[path], changed, random)
        made = self._write(place, path, (bytes(changed), what))
        made.is_one_figure = True
        return made

    def _bytes(self, random: Random, place: Path) -> Mutant:
        path = self._capture(random)
        return self._write(place, path, self.captures[path].mutant(random))

    def _parts(self, random: Random, place: Path) -> Mutant:
        path = self._capture(random)
        return self._write(place, path, parts.mutant(self.captures[path].content, random))

    def _merged(self, random: Random, place: Path) -> Mutant:
        path = self.folder / "merged.hiw"
        return self._write(place, path, parts.merged_mutant(path.read_bytes(), random))

    def _history(self, random: Random, place: Path) -> Mutant:
        path = self.folder / "snapshot.pickle"
        return self._write(place, path, parts.bytes_changed(path.read_bytes(), random))

    def _run(self, random: Random, place: Path) -> Mutant:
        shutil.copy(self.run, place)
        folder = shutil.copytree(f"{self.run}.d", place / f"{self.run.name}.d")
        if random.random() < 0.5:
            index = folder / "index.jsonl"
            content, what = parts.rows_mutant(index.read_bytes(), random)
            index.write_bytes(content)
        else:
            child = random.choice(self.children)
            content, what = parts.mutant(child.read_bytes(), random)
            (folder / child.name).write_bytes(content)
        return Mutant(place / self.run.name, self.run, what)


@dataclass
class Mutant:
    path: Path
    original: Path
    what: str
    view: list[str] = field(default_factory=list)
    is_one_figure: bool = False
    out: Path | None = None

    def words(self) -> list[str]:
        named = {
            MUTANT: str(self.path),
            ORIGINAL: str(self.original),
            OUT: str(self.out or self.path.parent / "out.hiw"),
        }
        return [named.get(word, word) for word in self.view]


def figures(path: Path) -> tuple[int, ...] | None:
    """The figures of a capture that is called sound; None of another."""
    import hiwater
    from hiwater.errors import HiwaterError

    with contextlib.suppress(HiwaterError):
        capture = hiwater.open(path)
        # One that was killed may be in the midst of an event: its figures are sound within that.
        if not capture.problems() and not capture.lost_events and capture.process.ended == "exit":
            return (capture.peak.allocated_bytes, capture.peak.allocated_blocks, capture.end.allocated_bytes)
    return None


@dataclass
class Result:
    """What many mutants came to."""

    count: int = 0
    peak_bytes: int = 0
    peak_of: str = ""
    seconds: float = 0
    seconds_of: str = ""
    failures: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.count += other.count
        self.failures += other.failures
        self.peak_bytes, self.peak_of = max((self.peak_bytes, self.peak_of), (other.peak_bytes, other.peak_of))
        self.seconds, self.seconds_of = max((self.seconds, self.seconds_of), (other.seconds, other.seconds_of))

    def __str__(self) -> str:
        return (
            f"{self.count:,} mutants, {len(self.failures)} failures\n"
            f"highest peak {self.peak_bytes / (1 << 20):.0f} MiB: {self.peak_of}\n"
            f"most processor time {self.seconds:.2f} s: {self.seconds_of}"
        )


class TooLong(BaseException):
    """A mutant took longer than any may."""


class Reader:
    """Reads mutants in this process, one after the other, with a limit on its memory."""

    def __init__(self, originals: Originals, place: Path) -> None:
        self._originals, self._place = originals, place
        verbs.build_parser = functools.cache(verbs.build_parser)  # a quarter of the time of a small report
        self._truth = {path: figures(path) for path in originals.captures}
        for number, words in enumerate(VIEWS):  # they import what they need
            (place / str(number)).mkdir()
            self._problem(Mutant(originals.run, originals.run, "", words, out=place / str(number) / "out.hiw"))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 3 * MOST_BYTES, resource.RLIM_INFINITY))
        signal.signal(signal.SIGVTALRM, self._too_long)

    @staticmethod
    def _too_long(*_: object) -> NoReturn:
        raise TooLong

    def read(self, number: int, seed: int) -> Result:
        mutant = self._originals.mutant(number, seed, self._place / "mutant")
        if _resident("RSS") > MOST_BYTES // 2:
            gc.collect()  # of the mutants before, which no report on one capture has
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        begun = time.process_time()
        problem = self._problem(mutant)
        seconds, peak = time.process_time() - begun, _resident("HWM")
        if not problem and seconds > MOST_SECONDS:
            problem = f"{seconds:.1f} s of processor time"
        if not problem and peak > MOST_BYTES:
            problem = f"a peak of {peak >> 20} MiB"
        failures = [f"{mutant.what}; {' '.join(mutant.view)}: {problem}"] if problem else []
        return Result(1, peak, mutant.what, seconds, mutant.what, failures)

    def _problem(self, mutant: Mutant) -> str:
        """What is wrong with how a mutant was read; "" if nothing is."""
        from hiwater import cli

        out, told = _Out(), io.StringIO()
        signal.setitimer(signal.ITIMER_VIRTUAL, 2 * MOST_SECONDS)
        try:
            with contextlib.redirect_stdout(out), messages_to(told):
                code = cli.main(mutant.words())
            now = figures(mutant.path) if mutant.is_one_figure and code == 0 else None
        except SystemExit as end:
            code, now = end.code, None
        except BaseException:  # noqa: BLE001 - of whatever kind: it is what is looked for
            return traceback.format_exc()[-1200:]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if now is not None and self._truth[mutant.original] not in (None, now):
            return f"figures {self._truth[mutant.original]} became {now} and are called sound"
        return _problem_of(mutant.view, code, out, told.getvalue())


def _problem_of(view: list[str], code: object, out: _Out, told: str) -> str:
    if code not in (0, 2, *FINDS.get(view[0], ())):
        return f"exit code {code}: {told[-900:]}"
    errors = [line for line in told.splitlines() if not line.startswith("hiwater: warning: ")]  # of contradictions
    if code == 2 and (out.first or len(errors) != 1 or not errors[0].startswith("hiwater")):
        return f"an error that is not one line alone: {out.first!r} {told[-400:]!r}"
    unsafe = out.unsafe or UNSAFE.search(told)
    if "--format=pprof" not in view and unsafe:
        return f"an unsafe character: {unsafe[0]!r}"
    return ""


def _resident(which: str) -> int:
    """Bytes: RSS, what is resident now, or HWM, the most since the peak was reset."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"Vm{which}:\s+(\d+)", status)[1]) << 10  # type: ignore[index]


class _Out(io.TextIOBase):
    """A stream of text with one of bytes below it, as stdout has. It looks at what is written, and keeps the first
    part: all of it would count as memory of the reader."""

    def __init__(self) -> None:
        self.first = ""
        self.unsafe: re.Match[str] | None = None
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        self.first = self.first or text[:200]
        self.unsafe = self.unsafe or UNSAFE.search(text)
        return len(text)


class _Bytes(io.RawIOBase):
    """The stream of bytes below a stream of text."""

    def __init__(self, out: _Out) -> None:
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._out.write(bytes(content).decode("utf-8", "replace"))
        return len(content)


def read_mutants(folder: Path, count: int, seed: int, workers: int, *, is_talking: bool = False) -> Result:
    """Read mutants 0 to `count` of the originals in `folder`, in so many processes."""
    whole = Result()
    running = [Worker(folder, range(number, count, workers), seed, is_talking=is_talking) for number in range(workers)]
    while running := [worker for worker in running if worker.is_running(whole)]:
        time.sleep(0.1)
    return whole


def read_in_this_process(folder: str, place: str, numbers: range, seed: int, is_talking: bool) -> None:
    """What a `Worker` starts. The number that is being read, and the result so far, are in files of `place`."""
    warnings.simplefilter("error")
    os.chdir(place)
    reader, whole, begun = Reader(Originals(Path(folder)), Path(place)), Result(), time.monotonic()
    for number in numbers:
        Path("number").write_text(str(number))
        found = reader.read(number, seed)
        whole.add(found)
        if is_talking and (found.failures or whole.count % 1000 == 0):
            print(*found.failures, f"{time.monotonic() - begun:.0f} s: {whole}", flush=True)
        Path("result").write_bytes(pickle.dumps(whole))
        if len(whole.failures) >= MOST_FAILURES:
            break


class Worker:
    """A process that reads mutants. If one of them ends it, or it waits for ever, another goes on with the next."""

    def __init__(self, folder: Path, numbers: range, seed: int, *, is_talking: bool) -> None:
        self._folder, self._numbers, self._seed, self._is_talking = folder, numbers, seed, is_talking
        self._start()

    def _start(self) -> None:
        """Not by a fork: what the process that starts it holds would be part of each mutant's peak."""
        self._place = Path(tempfile.mkdtemp(dir=self._folder))
        (self._place / "result").write_bytes(pickle.dumps(Result()))
        of = [str(self._folder), str(self._place), self._numbers, self._seed, self._is_talking]
        program = f"import fuzz; fuzz.read_in_this_process(*{of!r})"
        self._process = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parent)

    def is_running(self, whole: Result) -> bool:
        """Add to `whole` what it found, if it has ended."""
        code = self._process.poll()
        at = self._place / "number"
        if code is None and at.exists() and time.time() - at.stat().st_mtime > MOST_WAIT_SECONDS:
            fields = process_identity.stat_fields(self._process.pid)
            if fields and fields[process_identity.STATE] == b"S":  # not one that other work keeps from a processor
                self._process.kill()
        if code is None:
            return True
        whole.add(pickle.loads((self._place / "result").read_bytes()))
        if code == 0:
            return False
        last = int(at.read_text()) if at.exists() else self._numbers[-1]
        whole.failures.append(f"{self._seed}/{last}: it ended its reader, or made it wait ({code})")
        self._numbers = range(last + self._numbers.step, self._numbers.stop, self._numbers.step)
        if self._numbers and len(whole.failures) < MOST_FAILURES:
            self._start()
            return True
        return False


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 1_000_000
    whole = Result()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        for make in (build_originals, record_originals):
            folder = Path(name, make.__name__)
            folder.mkdir()
            make(folder)
            whole.add(read_mutants(folder, count // 2, seed, os.cpu_count() or 1, is_talking=True))
    print(f"seed {seed}: {whole}")
    for failure in whole.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if whole.failures else 0


if __name__ == "__main__":
    sys.exit(main())
