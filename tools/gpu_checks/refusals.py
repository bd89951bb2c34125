"""Reports of refused memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_checks.peaks import OTHER_BACKENDS
from gpu_checks.registry import MIB, Result, card_bytes, check, give, program, take

_GREEDY = """import torch
torch.cuda.init()
kept = []
def fill():
    while True:
        kept.append(torch.cuda.caching_allocator_alloc(1 << 30, stream=0))
fill()
"""


@check(
    "a program that fills the card: torch's error and exit code, and a report that names the shortage and the line",
    backends=("native", "expandable"),
    in_programs=True,
)
def shortage(folder: Path) -> Result:
    """Under `hiwater run`, as a user would."""
    path = program(folder, "greedy", _GREEDY)
    words = [sys.executable, "-m", "hiwater", "run", "-o", "greedy.hiw", path]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    report = folder / "greedy.oom.json"
    if not report.exists():
        return Result(False, {"exit code": done.returncode, "said": done.stderr[-600:]})
    said: dict[str, Any] = json.loads(report.read_text())
    message = next((line for line in done.stderr.splitlines() if "out of memory" in line.lower()), "")
    names_line = f"fill ({path}:" in report.with_suffix(".txt").read_text()
    held = done.returncode == 1 and said["verdict"]["kind"] == "shortage" and names_line
    figures = {
        "exit code": done.returncode,
        "names the line": names_line,
        "verdict": said["verdict"]["kind"],
        "message": message[:300],
    }
    return Result(held, figures, {"report": said, "message": message})


@check("a limit set by set_per_process_memory_fraction: the report calls it a limit")
def fraction(folder: Path) -> Result:
    """By its verdict."""
    import torch

    import hiwater

    torch.cuda.init()
    total = card_bytes()
    torch.cuda.set_per_process_memory_fraction(0.1)
    kept, watched = [take(total // 20)], hiwater.contrib.torch.guard(str(folder / "oom"), quiet=True)
    try:
        with watched:
            kept.append(take(total // 10))
    except torch.cuda.OutOfMemoryError as error:
        said = watched.report.to_dict()
        figures = {"verdict": str(said["verdict"]), "message": str(error)[:300]}
        return Result(said["verdict"]["kind"] == "limit", figures, {"report": said, "message": str(error)})
    return Result(False, {"verdict": "nothing was refused"})


def _refused() -> None:
    """A request that is refused; the program catches the error."""
    import torch

    try:
        take(1 << 45)
    except torch.cuda.OutOfMemoryError:
        return
    raise AssertionError("32 TiB were not refused")


LAST_REQUEST = (1 << 45) + (1 << 40)


@check("refusals that the program catches take no snapshot; the report is of the one that ended it")
def refusals(folder: Path) -> Result:
    """Two are caught, the third is not."""
    import torch

    import hiwater

    torch.cuda.init()
    real, snapshots = torch._C._cuda_memorySnapshot, []
    torch._C._cuda_memorySnapshot = lambda *words: (snapshots.append(1), real(*words))[1]
    watched = hiwater.contrib.torch.guard(str(folder / "oom"), quiet=True)
    caught = 0
    try:
        with watched:
            for _ in range(2):
                _refused()
                caught = len(snapshots)
            take(LAST_REQUEST)
    except torch.cuda.OutOfMemoryError as error:
        said = watched.report.to_dict()
        requested = said["refusal"]["requested_bytes"]
        held = caught == 0 and abs(requested - LAST_REQUEST) <= 2 * MIB
        figures = {"snapshots of caught ones": caught, "request": requested}
        return Result(held, figures, {"report": said, "message": str(error)})
    finally:
        torch._C._cuda_memorySnapshot = real
    return Result(False, {"request": "nothing was refused"})


@check("a guard over an allocator without history", backends=OTHER_BACKENDS)
def guard(folder: Path) -> Result:
    """Entered before the first use of CUDA and after it."""
    import torch

    import hiwater

    for _ in range(2):
        with hiwater.contrib.torch.guard(str(folder / "oom"), quiet=True):
            torch.cuda.init()
            give(take(MIB))
    return Result(True)
