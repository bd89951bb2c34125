"""Two versions of `examples/etl.py`, recorded: in the second the line that leaks is worse, and stands elsewhere."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from children import run_hiwater
from places import ROOT

FAULT = "self.history.append(table.copy(deep=True))  # the fault"
WORSE = "self.history.append([table.copy(deep=True) for _ in range(2)])  # the fault"


def record_script(folder: Path, script: Path, capture: str) -> Path:
    """Record a script in this folder; return the path of its capture."""
    path = folder / capture
    run_hiwater("run", "-q", "-o", path, script, folder=folder, check=True)
    return path


def recorded_versions(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The captures before.hiw and after.hiw, of etl_before.py and etl_after.py beside them. They import pandas, which
    takes seconds: all processes of a run of the tests have the same."""
    top = factory.getbasetemp()
    folder = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / "etl-example"
    folder.mkdir(exist_ok=True)
    captures = folder / "before.hiw", folder / "after.hiw"
    with (folder / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not lock.read():
            text = (ROOT / "examples" / "etl.py").read_text("utf-8")
            assert text.count(FAULT) == 1
            worse = text.replace("class Pipeline", "# moved\n#\n#\nclass Pipeline").replace(FAULT, WORSE)
            for capture, version in zip(captures, (text, worse), strict=True):
                script = folder / f"etl_{capture.stem}.py"
                script.write_text(version)
                record_script(folder, script, capture.name)
            lock.write("recorded")
    return captures
