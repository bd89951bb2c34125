"""Runs programs with the folder of the drop-in modules first on PYTHONPATH, as users of other profilers do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from children import run_python
from hiwater.contrib.compat.drop_ins import folder

HIWATER = str(Path(folder()).parent.parent)


def run(*words: str | Path, cwd: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([folder(), HIWATER])
    return run_python(*words, folder=cwd, env={**os.environ, "PYTHONPATH": places, **environment}, check=check)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
