"""Tasks for a cluster, in a module that its workers can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy

HELD = 5_000_000
LEAKED: list[bytearray] = []


def hold(size: int) -> int:
    block = bytearray(size)
    return len(block)


def leak(size: int) -> None:
    LEAKED.append(bytearray(size))


def partition(_: int, size: int) -> bytearray:
    return bytearray(size)


def die_once(flag: str) -> int:
    kept = bytearray(HELD)
    if not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return len(kept)


def too_much() -> int:
    return len(numpy.empty(16 << 30, numpy.uint8))
