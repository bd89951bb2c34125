"""Waits for events in place of sleeping for as long as they should take."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 300
"""An event that never comes ends the test; nothing is measured by it."""
FUTEX, SLEEPING = 202, 230  # system calls of x86-64: to wait for a lock, and time.sleep()


def wait_until(happened: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < until, f"what was waited for has not happened in {PATIENCE_SECONDS} s"
        time.sleep(0.01)


def is_in_call(number: int, process: int, thread: int | None = None) -> bool:
    """Whether a thread, by default the first of its process, waits in this system call."""
    return Path(f"/proc/{process}/task/{thread or process}/syscall").read_text().startswith(f"{number} ")
