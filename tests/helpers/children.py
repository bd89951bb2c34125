"""Runs `hiwater` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import warm_reader
from recording import child_environment
from waiting import PATIENCE_SECONDS


def hiwater_command(*words: object) -> list[str]:
    return [sys.executable, "-m", "hiwater", *map(str, words)]


def run_hiwater(
    *words: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    check: bool = False,
    loaded: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `hiwater` with these words in a folder, with what `environment` adds; with `check` the test fails unless
    it succeeds. `loaded` are packages that take long to import, and that its process has loaded before."""
    if warm_reader.reads(words, environment):
        loaded = warm_reader.READERS
    if loaded:
        done = warm_reader.hiwater([str(word) for word in words], folder, child_environment(environment), loaded)
    else:
        done = subprocess.run(
            hiwater_command(*words), cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
            env=child_environment(environment),
        )  # fmt: skip
    assert not check or done.returncode == 0, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
