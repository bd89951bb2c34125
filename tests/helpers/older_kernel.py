"""Runs Python as on Linux 4.18, which lacks some of what hiwater uses elsewhere, and all that Python starts:
`python tests/helpers/older_kernel.py -m pytest …`. See tests/extensions/filters.c."""

from __future__ import annotations

import ctypes
import os
import sys

import compiled

if __name__ == "__main__":
    error = ctypes.CDLL(str(compiled.library("filters"))).older_kernel()
    if error:
        sys.exit(f"no filter of system calls can be installed: {os.strerror(error)}")
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
