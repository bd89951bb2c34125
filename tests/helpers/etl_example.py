"""`examples/etl.py`, the line in it that leaks, and how tests record it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import ROOT

ETL = ROOT / "examples" / "etl.py"


FAULT = "self.history.append(table.copy(deep=True))  # the fault"


def record_script(folder: Path, script: Path, capture: str) -> Path:
    """Record a script in this folder; return the path of its capture."""
    path = folder / capture
    command = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(path), str(script)]
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    return path
