"""Random trees of processes, and the sums of their memory measured from outside."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import hiwater_command
from hiwater.capture.at_once import Machine
from recording import child_environment
from tree_program import sum_of_pss

MIB = 1 << 20
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
    """The highest sum of what the processes said that they held, which is between these two; and the highest sum of PSS."""

    held_least_bytes: int
    held_most_bytes: int
    pss_bytes: int


def record(spec: Spec, folder: Path) -> tuple[Path, Truth]:
    """Run the tree under `hiwater run`. Returns the path of the run, and the truth."""
    path, log = folder / "tree.hiw", folder / "log"
    words = hiwater_command("run", "-q", "-o", path, PROGRAM, log, json.dumps(spec))
    with subprocess.Popen(words, env=child_environment()) as program:
        highest = 0
        while program.poll() is None:
            highest = max(highest, sum_of_pss(program.pid))
            time.sleep(0.004)
    assert program.returncode == 0
    return path, _said(log, highest)


def _said(log: Path, pss: int) -> Truth:
    """Of each change one time before it and one after it are known: what was held at least, and at most. After it, and before the next one, the
    process itself measures the sum of PSS."""
    least, most, highest = dict[str, int](), dict[str, int](), (0, 0)
    for line in log.read_text().splitlines():
        _, pid, when, number = line.split()
        if when == "pss":
            pss = max(pss, int(number))
        elif when in ("begin", "end", "leave"):
            least.pop(pid, None)
            if when != "leave":
                most.pop(pid, None)
        elif (when == "before") == (int(number) > 0):
            most[pid] = most.get(pid, 0) + int(number)
        else:
            least[pid] = least.get(pid, 0) + int(number)
        highest = max(highest[0], sum(least.values())), max(highest[1], sum(most.values()))
    return Truth(*highest, pss)


def check_resident(machine: Machine, truth: Truth) -> None:
    """Measured from outside, hiwater's tables are in it. What a process allocated as it was killed, it did not measure."""
    instant = machine.resident
    assert instant is not None
    overhead = sum(
        int(capture.overhead_at(capture.timeline.at_ns[-1:]).sum())
        for capture in machine.captures
        if 0 <= instant.at_unix_ns - capture.process.started_unix_ns <= capture.process.duration_ns
    )
    off = abs(instant.bytes + overhead - truth.pss_bytes)
    unmeasured = truth.held_most_bytes - truth.held_least_bytes
    assert off <= 2 * MIB + truth.pss_bytes // 50 + instant.error_bytes + unmeasured
