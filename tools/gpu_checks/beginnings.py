"""Where a recording of a device begins: within CUDA's initialisation, with a program, and in one that already runs."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpu_checks.registry import IN_PLACE, MIB, Result, check, hiwater, lines_of, program, take

INITIALISATIONS = 6
_MEMBARRIER = 324  # on x86-64


@check("the machine: what hiwater says of it, and of what its kernel does not have")
def surroundings(folder: Path) -> Result:
    """A sandbox's kernel may lack `membarrier`, the table of pages or the kernel's high-water mark: hiwater must
    work, and say so."""
    commands = ctypes.CDLL(None).syscall(_MEMBARRIER, 0, 0, 0)  # the commands that there are, -1 without it
    found = {"membarrier": commands, "kernel": platform.release()}
    for name in ("pagemap", "smaps_rollup", "clear_refs"):
        try:
            with Path("/proc/self", name).open("wb" if name == "clear_refs" else "rb") as file:
                found[name] = file.write(b"5") if name == "clear_refs" else len(file.read(8))
        except OSError as error:
            found[name] = error.strerror
    return Result(True, found | {"doctor": " / ".join(hiwater("doctor", folder=folder).stdout.split("\n"))[:3000]})


def initialise(number: int) -> int:
    """Begin a recording's history within CUDA's initialisation; 0 when it is on for the first allocation, 3 when it
    is not."""
    import torch

    from hiwater.recording.device_histories import DeviceHistories

    histories = DeviceHistories()
    delay = 1e-5 * 6.5**number  # from before the initialisation's first line to after its last

    def begin(*_: object) -> None:
        histories.begin()
        signal.setitimer(signal.ITIMER_REAL, delay)

    signal.signal(signal.SIGALRM, begin)
    signal.setitimer(signal.ITIMER_REAL, delay)
    torch.cuda.init()
    signal.setitimer(signal.ITIMER_REAL, 0)
    histories.begin()
    take(5 * MIB)
    actions = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
    return 0 if "alloc" in actions else 3


@check("a recording begins within torch's initialisation of CUDA: no hang, no lost allocation", seconds=90)
def init(_: Path) -> Result:
    """Each initialisation in a process of its own, with a limit of time."""
    double = ["--double"] if IN_PLACE else []
    endings = []
    for number in range(INITIALISATIONS):
        words = [sys.executable, Path(__file__).parent, *double, "--initialise", str(number)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
            endings.append(f"{done.returncode} {done.stderr[-200:]}".strip())
        except subprocess.TimeoutExpired:
            endings.append("hang")
    figures = {"initialisations": INITIALISATIONS, "exit codes": ", ".join(sorted(set(endings)))}
    return Result(set(endings) == {"0"}, figures)


_FIRST = f"""import torch
def first():
    return torch.cuda.caching_allocator_alloc({5 * MIB}, stream=0)
kept = first()
more = torch.cuda.caching_allocator_alloc({3 * MIB}, stream=0)
"""


@check("`hiwater run`: the first allocations of a program have their lines", in_programs=True)
def recorded(folder: Path) -> Result:
    """By the capture's history, whose peak is what the program allocated."""
    from hiwater import open as open_capture

    path = program(folder, "first", _FIRST)
    begun = time.monotonic()
    hiwater("run", "-q", "-o", "first.hiw", path, folder=folder)
    took = time.monotonic() - begun
    lines = lines_of(open_capture(folder / "first.hiw"), path)
    text = path.read_text().splitlines()
    found = {text[line - 1].partition("=")[0].strip(): size for line, size in sorted(lines.items())}
    held = found.get("kept") == 5 * MIB and found.get("more") == 3 * MIB
    return Result(held, {"lines": found, "seconds": round(took, 1)})


_WAITING = f"""import pathlib, sys, time, torch
folder = pathlib.Path(sys.argv[1])
kept = torch.cuda.caching_allocator_alloc({7 * MIB}, stream=0)
(folder / "ready").touch()
until = time.monotonic() + 60
while not (folder / "go").exists() and time.monotonic() < until:
    time.sleep(0.05)
after = torch.cuda.caching_allocator_alloc({11 * MIB}, stream=0)
(folder / "allocated").touch()
while not (folder / "end").exists() and time.monotonic() < until:
    time.sleep(0.05)
print("as it was")
"""


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the program did not come to {path.name}: {process.communicate()[1][-600:]}")
        time.sleep(0.02)


def _attach(folder: Path, standby: str) -> tuple[str, float, str]:
    """Attach to a waiting program: what `attach` said if it refused, how long it took, and what the program printed
    at its end."""
    path = program(folder, "waiting", _WAITING)
    environment = {**os.environ, "HIWATER": standby}
    process = subprocess.Popen(
        [sys.executable, path, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    refusal = ""
    try:
        _wait_for(folder / "ready", process)
        begun = time.monotonic()
        try:
            hiwater("attach", process.pid, "-o", "attached.hiw", folder=folder)
        except RuntimeError as error:
            refusal = str(error)
        took = time.monotonic() - begun
        time.sleep(0.5)  # the recorder sees devices five times a second
        (folder / "go").touch()
        _wait_for(folder / "allocated", process)
        if not refusal:
            hiwater("detach", process.pid, folder=folder)
    finally:
        (folder / "end").touch()
        printed, _ = process.communicate(timeout=60)
    return refusal, took, printed.strip()


@check("attaching to a program on standby: what it allocates from then on has its lines", seconds=60)
def standby(folder: Path) -> Result:
    """What it had allocated before is in the figures, without its lines."""
    from hiwater import open as open_capture

    refusal, took, printed = _attach(folder, "standby")
    if refusal:
        return Result(False, {"refused": refusal, "program": printed})
    capture = open_capture(folder / "attached.hiw")
    (history,) = capture.device_histories
    lines = lines_of(capture, folder / "waiting.py")
    held = printed == "as it was" and history.peak.allocated_bytes == 18 * MIB and [*lines.values()] == [11 * MIB]
    return Result(held, {"attach, s": round(took, 2), "lines": lines, "peak": history.peak.allocated_bytes})


@check("attaching to any other program: it works or is refused within ten seconds, and the program goes on", seconds=60)
def attached(folder: Path) -> Result:
    """Without gdb and before CPython 3.14 it is refused, with a reason."""
    refusal, took, printed = _attach(folder, "")
    figures = {"attach, s": round(took, 2), "refused": refusal[-200:], "program": printed}
    return Result(printed == "as it was" and took < 10, figures)
