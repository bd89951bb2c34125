"""Runs programs with the folder of the drop-in modules first on PYTHONPATH, as users of other profilers do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hiwater.contrib.compat.drop_ins import folder

HIWATER = str(Path(folder()).parent.parent)


def run(*words: str | Path, cwd: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([folder(), HIWATER])
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, "PYTHONPATH": places, **environment},
        capture_output=True, text=True, check=check, timeout=300,
    )  # fmt: skip


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
