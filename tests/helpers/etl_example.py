"""`examples/etl.py`, the line in it that leaks, and how tests record it."""

from __future__ import annotations

from pathlib import Path

from children import run_hiwater
from places import ROOT

ETL = ROOT / "examples" / "etl.py"
FAULT = "self.history.append(table.copy(deep=True))  # the fault"


def record_script(folder: Path, script: Path, capture: str) -> Path:
    """Record a script in this folder; return the path of its capture."""
    path = folder / capture
    run_hiwater("run", "-q", "-o", path, script, folder=folder, check=True)
    return path
