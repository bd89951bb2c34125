"""Random programs that end in every manner, recorded while others truncate, overwrite, delete, move and share the
capture: the exit code and the output are the program's own every time. `python tests/stress/endings.py [COUNT [SEED]]`;
a failure names the seed that makes it again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECONDS = 120

LOADS = {
    "nothing": "",
    "objects": "kept = [bytes(n) for n in range(0, 4000, 3)] * 2",
    "churn": "for i in range(60): [bytearray(50 * i % 900) for _ in range(200)]",
    "threads": (
        "def work():\n"
        "    for i in range(40): [bytes(n) for n in range(0, 2000, 7)]\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    ),
    "daemons": (
        "def work():\n"
        "    while True: [bytes(n) for n in range(0, 2000, 7)]\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.03)"
    ),
    "mappings": "kept = [bytes(5_000_000) for _ in range(8)]",
    "stacks": (
        "def deeper(n): return [bytes(100 + n), deeper(n - 1) if n else None]\n"
        "kept = [eval('\\n' * i + 'deeper(60)') for i in range(30)]"
    ),
    "files": "kept = [os.popen('true').read(), open('/dev/zero', 'rb').read(3_000_000)]",
}

ENDINGS = {
    "end": "print('end')",
    "exit 3": "print('out'); sys.exit(3)",
    "exit with text": "sys.exit('text')",
    "exit -1": "sys.exit(-1)",
    "exit 263": "raise SystemExit(263)",
    "exception": "raise ValueError('own')",
    "interrupt": "raise KeyboardInterrupt",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGBUS": "os.kill(os.getpid(), signal.SIGBUS)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
    "SIGALRM": "signal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True: [bytes(300) for _ in range(100)]",
    "handled SIGTERM": (
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(31)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)"
    ),
    "abort": "os.abort()",
    "_exit": "print('out', flush=True); os._exit(5)",
    "C exit": "ctypes.CDLL(None).exit(4)",
    "C _exit": "ctypes.CDLL(None)._exit(14)",
    "exec": "sys.stdout.flush(); os.execv('/bin/sh', ['sh', '-c', 'echo other; exit 6'])",
    "failed exec": "with contextlib.suppress(OSError): os.execv('/no/such', ['x'])\nsys.exit(16)",
    "child's code": "print(os.waitstatus_to_exitcode(os.system('exit 7'))); sys.exit(8)",
    "fork": (
        "pid = os.fork()\nif pid == 0:\n    kept = [bytes(500)] * 1000\n    sys.exit(2)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 10)"
    ),
    "fork and _exit": (
        "pid = os.fork()\nif pid == 0: os._exit(3)\nsys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 20)"
    ),
    "subprocess": "sys.exit(subprocess.run([sys.executable, '-S', '-c', 'raise SystemExit(9)']).returncode)",
    "living thread": (
        "threading.Thread(target=lambda: (threading.main_thread().join(), print('thread'))).start(); sys.exit(11)"
    ),
    "exception in a thread": "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); sys.exit(12)",
    "atexit": "atexit.register(lambda: print('last')); sys.exit(13)",
    "failing atexit": "atexit.register(lambda: 1 / 0); sys.exit(15)",
    "_exit in atexit": "atexit.register(lambda: os._exit(17))",
    "recursion": "def f(): f()\nf()",
    "memory": "bytes(1 << 60)",
}
PRELUDE = "import atexit, contextlib, ctypes, os, signal, subprocess, sys, threading, time\n"


def _truncate(path: Path, _: random.Random) -> None:
    os.truncate(path, 0)


def _shorten(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _overwrite(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randrange(3_000_000)))


def _scribble(path: Path, chance: random.Random) -> None:
    # As another program that has a writable mapping: the size stays. Behind the header, so that it is not found at
    # once.
    with open(path, "r+b") as file:
        file.seek(chance.randrange(300_000, 1_000_000))
        file.write(chance.randbytes(50_000))


def _delete(path: Path, _: random.Random) -> None:
    path.unlink()


def _move(path: Path, _: random.Random) -> None:
    path.rename(path.with_name("moved.hiw"))


def _replace(path: Path, _: random.Random) -> None:
    path.with_name("mine").write_text("mine")
    path.with_name("mine").rename(path)


def _record_too(path: Path, _: random.Random) -> None:
    words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(path), "-c", "raise SystemExit(41)"]
    done = subprocess.run(words, capture_output=True, check=False, timeout=SECONDS, cwd=path.parent)
    if done.returncode != 41:
        raise AssertionError(f"the second recorder ended with {done.returncode}: {done.stderr.decode()}")


HARMS: list[Callable[[Path, random.Random], None] | None] = [
    None, _truncate, _truncate, _shorten, _overwrite, _scribble, _delete, _move, _replace, _record_too,
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One program, how it is recorded, what others do to its capture and when; and a signal from outside, 0 for
    none."""

    seed: int
    load: str
    ending: str
    sampled: bool
    harm: Callable[[Path, random.Random], None] | None
    delay: float
    killed_by: int

    @property
    def source(self) -> str:
        return PRELUDE + LOADS[self.load] + "\n" + ENDINGS[self.ending] + "\n"

    def __str__(self) -> str:
        harm = self.harm.__name__[1:] if self.harm else "no harm"
        killed = f", killed by {self.killed_by}" if self.killed_by else ""
        sampled = ", sampled" if self.sampled else ""
        return f"case {self.seed}: {self.load}, {self.ending}{sampled}; {harm} after {self.delay * 1000:.0f} ms{killed}"


def case(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(seed)
    return Case(
        seed=seed,
        load=chance.choice(list(LOADS)),
        ending=chance.choice(list(ENDINGS)),
        sampled=chance.random() < 0.3,
        harm=chance.choice(HARMS),
        delay=chance.choice([0, 0.002, 0.01, 0.03, 0.06]) * chance.random(),
        killed_by=chance.choice([signal.SIGTERM, signal.SIGKILL]) if chance.random() < 0.05 else 0,
    )


_plain: dict[tuple[str, str], tuple[int, str]] = {}


def plain(what: Case) -> tuple[int, str]:
    """The exit code and the output without hiwater; they depend on the source alone."""
    key = (what.load, what.ending)
    if key not in _plain:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", what.source],
                capture_output=True, text=True, check=False, timeout=SECONDS, cwd=folder,
            )  # fmt: skip
        _plain[key] = (done.returncode, done.stdout)
    return _plain[key]


def _interfere(what: Case, process: subprocess.Popen[str], path: Path, faults: list[str]) -> None:
    chance = random.Random(what.seed + 1)
    while not path.exists() and process.poll() is None:
        time.sleep(0.001)
    time.sleep(what.delay)
    if what.harm is not None:
        try:
            with contextlib.suppress(FileNotFoundError, ValueError):  # it ended before; it has no bytes yet
                what.harm(path, chance)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            faults.append(str(error))
    if what.killed_by and process.poll() is None:
        process.send_signal(what.killed_by)


def trial(what: Case) -> str:
    """Run a case; return what is wrong, "" where nothing is."""
    code, output = plain(what)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.hiw"
        sampling = ["--sample", "64KiB"] if what.sampled else []
        process = subprocess.Popen(
            [sys.executable, "-m", "hiwater", "run", "-o", str(path), *sampling, "-c", what.source],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip
        other = threading.Thread(target=_interfere, args=(what, process, path, faults))
        other.start()
        try:
            out, said = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, said = process.communicate()
            faults.append(f"it did not end in {SECONDS} s")
        other.join()
        expected = {code, -what.killed_by} if what.killed_by else {code}
        if process.returncode not in expected:
            faults.append(f"it ended with {process.returncode}, plain with {code}")
        if out != output and not what.killed_by:
            faults.append(f"it printed {out!r}, plain {output!r}")
        if [name for name in os.listdir(folder) if name.startswith(".hiwater-")] and not _is_killed(process.returncode):
            faults.append(f"files are left: {os.listdir(folder)}")
    return f"{what}: {'; '.join(faults)}\n{said}" if faults else ""


def _is_killed(code: int) -> bool:
    return code in (-signal.SIGKILL, -signal.SIGTERM)


def run(count: int, seed: int, tell: Callable[[str], None] = print) -> list[str]:
    """Run `count` cases from `seed` on; return what was wrong with which."""
    wrong = []
    began = time.monotonic()
    for number in range(seed, seed + count):
        found = trial(case(number))
        if found:
            wrong.append(found)
            tell(found)
        if (number - seed + 1) % 500 == 0:
            tell(f"{number - seed + 1} cases in {time.monotonic() - began:.0f} s, {len(wrong)} wrong")
    return wrong


if __name__ == "__main__":
    count, seed = (int(word) for word in [*sys.argv[1:], *("1000", "1")[len(sys.argv) - 1 :]])
    wrong = run(count, seed, lambda text: print(text, flush=True))
    print(f"{count} endings from seed {seed}: {len(wrong)} wrong")
    sys.exit(bool(wrong))
