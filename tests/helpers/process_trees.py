"""Random trees of processes, and the sums of their memory measured from outside."""

from __future__ import annotations

import atexit
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from children import hiwater_command
from hiwater.capture import Run
from hiwater.capture.at_once import Machine
from recording import child_environment
from tree_program import OUTSIDE, Line, Log

MIB = 1 << 20
INTERPRETER, FORK = 18 * MIB, 2 * MIB  # what they make resident before they hold anything, at most
PROGRAM = Path(__file__).parent / "tree_program.py"

Spec = dict[str, Any]


def random_tree(choice: random.Random, depth: int = 0, left: list[int] | None = None) -> Spec:
    """What a process does, step by step; at most eight processes."""
    left = [choice.randint(2, 7)] if left is None else left
    steps: list[list[Any]] = []
    for _ in range(choice.randint(2, 7) if depth else choice.randint(4, 9)):
        what = choice.random()
        if what < 0.30:
            steps.append(["sleep", choice.choice([1, 3, 8, 15, 30, 60, 120, 200, 300])])
        elif what < 0.55:
            steps.append(["hold", choice.choice([1, 2, 5, 10, 20, 30, 50])])
        elif what < 0.62:
            steps.append(["objects", choice.choice([1, 4, 8])])
        elif what < 0.75:
            steps.append(["let_go", 0])
        elif what < 0.80:
            steps.append(["rewrite", 0])
        elif what < 0.94 and depth < 3 and left[0] > 0:
            left[0] -= 1
            steps.append([choice.choices(["fork", "spawn"], [4, 1])[0], random_tree(choice, depth + 1, left)])
        elif what < 0.96:
            steps.append(["join", 0])
        elif what < 0.99:
            steps.append(["kill", choice.choice([signal.SIGKILL, signal.SIGTERM])])
        elif depth and left[0] > 0:
            left[0] -= 1
            steps.append(["exec", random_tree(choice, depth + 1, left)])
            break
    return {"steps": steps}


@dataclass(frozen=True)
class Truth:
    """The highest sum of what the processes said that they held, and the highest sum of PSS: each is between these
    two."""

    held_least_bytes: int
    held_most_bytes: int
    pss_least_bytes: int
    pss_most_bytes: int


def record(spec: Spec, folder: Path) -> tuple[Path, Truth]:
    """Run the tree under `hiwater run`. Returns the path of the run, and the truth."""
    path = folder / "tree.hiw"
    return path, watch(hiwater_command("run", "-q", "-o", path, PROGRAM), spec, folder)


def watch(command: Sequence[str], spec: Spec, folder: Path) -> Truth:
    """Run the tree with this command, to the end of its last process, and measure it."""
    log, environment = Log(str(folder / "log")), child_environment({"LD_LIBRARY_PATH": _own_libraries()})
    with subprocess.Popen([*command, log.path, json.dumps(spec)], env=environment) as program:
        log.note("starts", program.pid)
        while program.poll() is None or log.running():  # whom a killed process had started runs on
            log.measure(OUTSIDE)
            time.sleep(0.004)
    assert program.returncode == 0
    lines = log.lines()
    return Truth(*_held(lines), *_pss(lines))


@cache
def _own_libraries() -> str:
    """A folder with copies of the largest libraries of an interpreter. PSS of pages of files falls when another program
    of the machine maps them, too: by up to 3 MiB in a tree whose figures are read at different times."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for path in mapped:
        if Path(path).name.startswith(("libpython", "libc.so", "libm.so")):
            shutil.copy(path, folder.name)
    return folder.name


def _held(lines: Iterable[Line]) -> tuple[int, int]:
    """Of each change there is a line before it and one after it."""
    least, most, leaving, highest = dict[int, int](), dict[int, int](), set[int](), (0, 0)
    for pid, what, sizes in lines:
        if what in ("begin", "end"):
            most.pop(pid, None)
            leaving.discard(pid)
        elif what == "leave":
            least.pop(pid, None)
            leaving.add(pid)
        elif what in ("before", "after"):
            if (what == "before") == (sizes[0] > 0):
                most[pid] = most.get(pid, 0) + sizes[0]
            elif pid not in leaving:
                least[pid] = least.get(pid, 0) + sizes[0]
        highest = max(highest[0], sum(least.values())), max(highest[1], sum(most.values()))
    return highest


def _pss(lines: Sequence[Line]) -> tuple[int, int]:
    """At least the highest that was measured before the first process ended, which reads the others; while none was
    leaving: its recording has ended then; and while none lent its memory: it would count twice. From one measurement
    to the next it was at most the first and what grew since; and once nothing falls any more, at most the second."""
    rises, falling, unclear, total = dict[int, int](), set[int](), set[int](), 0
    last_unclear = -1
    grown, rising, is_falling = list[int](), list[int](), list[bool]()  # up to each line, at it, and at it
    begun, measured = dict[int, int](), [(0, 0, 0, 0)]  # from which line to which, and bytes at least and at most
    for number, (pid, what, sizes) in enumerate(lines):
        change = {"begin": FORK, "starts": INTERPRETER}.get(what) or (sizes[0] if what in ("before", "copies") else 0)
        is_over = what in ("after", "copied", "begin", "end")
        if is_over:
            rises.pop(pid, None)
        elif change > 0:
            rises[pid] = change
        elif change < 0 or what == "leave":
            falling.add(pid)
        total += max(0, change)
        grown.append(total)
        rising.append(sum(rises.values()))
        is_falling.append(bool(falling))
        if is_over:
            falling.discard(pid)
        if what in ("leave", "lends"):
            unclear.add(pid)
        if unclear:
            last_unclear = number
        if what in ("begin", "end", "lent") and (pid != lines[0][0] or what != "end"):
            unclear.discard(pid)
        elif what == "read":
            begun[pid] = number
        elif what == "pss":
            measured.append((begun[pid], number, sizes[0] if last_unclear < begun[pid] else 0, sizes[1]))
    highest = 0
    for (first, _, _, before), (_, last, _, after) in pairwise(measured):
        until = [before + rising[first] + count - grown[first] for count in grown[first : last + 1]]
        fallen = [most for most, falls in zip(until, is_falling[first : last + 1], strict=True) if falls]
        highest = max(highest, min(until[-1], after), *fallen[-1:])
    return max(least for _, _, least, _ in measured), highest


def check_resident(run: Run, truth: Truth) -> None:
    """Measured from outside, hiwater's tables are in it, and processes that ended before their recording could
    begin: the run says how many."""
    (machine,) = run.machines
    assert machine.resident is not None
    found = with_overhead(machine)
    allowed = 2 * MIB + found // 50 + machine.resident.error_bytes
    least, most = truth.pss_least_bytes - INTERPRETER * len(run.unrecorded), truth.pss_most_bytes
    assert least - allowed <= found <= most + allowed


def with_overhead(machine: Machine) -> int:
    """The highest sum of resident memory with hiwater's."""
    times = np.unique(np.concatenate([track.at_ns for _, track in machine.resident_tracks]))
    total = np.zeros(len(times), np.int64)
    for capture, track in machine.resident_tracks:
        held = track.lasting().at(times)
        total += held + np.where(held > 0, capture.overhead_at(times - capture.process.started_unix_ns), 0)
    return int((total + sum(track.lasting().at(times) for track in machine.counted_twice)).max())
