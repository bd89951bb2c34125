"""A small part of what `make check-unwind` compares."""

import subprocess
import sys
from pathlib import Path

from recording import needs_engine


@needs_engine
def test_walks_of_ordinary_programs_are_right() -> None:
    script = Path(__file__).with_name("check_unwind.py")
    done = subprocess.run(
        [sys.executable, script, "--seconds", "0.3", "objects", "sqlite3", "numpy"], capture_output=True, text=True,
        timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout
