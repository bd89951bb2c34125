"""Peaks of resident memory of hiwater's own commands."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = r"""
import os, re, sys
from hiwater import cli
code = cli.main(sys.argv[1:])
sys.stdout.flush()
os.write(2, re.search(rb"VmHWM:\s+(\d+)", open("/proc/self/status", "rb").read())[1])
sys.exit(code)
"""


def peak_of_command(*words: str) -> int:
    """The peak of `hiwater WORDS` in bytes. It is read inside, since `ru_maxrss` begins with the peak of the process
    that started it, here that of a test process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
    )
    return int(done.stderr.split()[-1]) << 10
