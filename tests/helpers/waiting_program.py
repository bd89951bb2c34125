"""A recorded program that waits until the test has done something to its capture."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from children import hiwater_command, run_hiwater

SECONDS = 300


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_hiwater("run", *words, folder=folder)


@contextmanager
def recording(folder: Path, source: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A recorded program that has printed a line, and goes on when its standard input gets one."""
    process = subprocess.Popen(
        hiwater_command("run", *words, "-c", textwrap.dedent(source)),
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() != ""
        yield process
    finally:
        process.kill()
        process.communicate()


WAITS = "print('ready', flush=True); input(); kept = [bytes(1000) for _ in range(10_000)]; raise SystemExit(7)"
