"""Runs `hiwater`, or this interpreter, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import warm_reader
from recording import child_environment
from waiting import PATIENCE_SECONDS


def hiwater_command(*words: object) -> list[str]:
    return [sys.executable, "-m", "hiwater", *map(str, words)]


def torchrun(ranks: int, *options: str) -> list[str]:
    """The launcher of this environment's torch, whose script need not be on PATH."""
    here = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *here, *options, "--no-python"]


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
        done = warm_reader.run("hiwater", [str(word) for word in words], folder, child_environment(environment), loaded)
    else:
        done = run_command(hiwater_command(*words), folder=folder, env=child_environment(environment))
    assert not check or done.returncode == 0, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_python(
    *words: object, folder: Path | None = None, env: Mapping[str, str] | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with these words; see `run_command()`."""
    return run_command([sys.executable, *map(str, words)], folder=folder, env=env, check=check)


def run_command(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, and return what it wrote. `env` is its whole environment; by default, that of
    here."""
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=check
    )
