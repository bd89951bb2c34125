"""What a check is, and what checks share: allocations on the device, and programs that run in processes of their
own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent.parent
HELPERS = TREE / "tests" / "helpers"
MIB = 1 << 20
IN_PLACE: list[Any] = []
"""The double in this process, None where its programs alone use it; empty on a card."""


@dataclass
class Result:
    """What a check found: whether it held (None: nothing can fail), figures for the table, and data for tests that
    run without a card."""

    held: bool | None
    figures: dict[str, Any] = field(default_factory=dict)
    golden: dict[str, Any] = field(default_factory=dict)


Run = Callable[[Path], "Result | Iterator[Result]"]
"""A check gets the folder for what it leaves. One that takes long yields what it has so far: the last counts."""


@dataclass(frozen=True)
class Check:
    """A check: its subject, how many seconds it may take, torch's allocator for it, whether it needs a card, and
    whether its programs alone use torch, which takes seconds to import."""

    run: Run
    subject: str
    seconds: float
    backend: str
    needs_card: bool
    in_programs: bool


CHECKS: dict[str, Check] = {}
"""In the order of their worth: if the time is cut, the last ones are missing."""


def check(
    subject: str,
    *,
    seconds: float = 30,
    backends: tuple[str, ...] = ("native",),
    needs_card: bool = False,
    in_programs: bool = False,
) -> Callable[[Run], Run]:
    """Add a function to the checks, once for each of torch's allocators (`put_backend`)."""

    def add(run: Run) -> Run:
        for backend in backends:
            name = run.__name__ if backend == "native" else f"{run.__name__}-{backend}"
            CHECKS[name] = Check(run, subject, seconds, backend, needs_card, in_programs)
        return run

    return add


def take(size: int) -> int:
    """Allocate on the current device without a tensor; return the address."""
    import torch

    return int(torch.cuda.caching_allocator_alloc(size, stream=0))


def give(address: int) -> None:
    """Free what `take` allocated."""
    import torch

    torch.cuda.caching_allocator_delete(address)


def card_bytes() -> int:
    """The memory of the device."""
    import torch

    return int(IN_PLACE[0].cards[0].total_bytes if IN_PLACE else torch.cuda.get_device_properties(0).total_memory)


# --- programs of their own --------------------------------------------------------------------------------------------

_DOUBLE = f"""import sys, time
sys.path.insert(0, {str(HELPERS)!r})
from cuda_double import install
install()
time.sleep(0.5)  # a card's initialisation takes that long
"""
_SECONDS = 60


def program(folder: Path, name: str, text: str) -> Path:
    """Write a program that uses torch's device: a card, or the double where this process has it."""
    path = folder / f"{name}.py"
    path.write_text((_DOUBLE if IN_PLACE else "") + text)
    return path


def hiwater(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `hiwater` in the folder. Raises RuntimeError with what it said if it does not end with 0."""
    done = subprocess.run(
        [sys.executable, "-m", "hiwater", *map(str, words)],
        cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"hiwater {words[0]} ended with {done.returncode}: {done.stderr[-600:]}")
    return done


def lines_of(capture: Any, path: Path) -> dict[int, int]:
    """What each line of the program had allocated on the device at the peak, by line number."""
    (history,) = capture.device_histories
    found: dict[int, int] = {}
    for stack in history.peak.stacks:
        for frame in stack.frames:
            if frame.file == str(path):
                found[frame.line] = found.get(frame.line, 0) + stack.bytes
    return found
