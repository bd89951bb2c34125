"""A small part of what `make check-unwind` compares."""

from pathlib import Path

from children import run_python
from recording import needs_engine


@needs_engine
def test_walks_of_ordinary_programs_are_right() -> None:
    script = Path(__file__).with_name("check_unwind.py")
    done = run_python(script, "--seconds", "0.3", "objects", "sqlite3", "numpy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout
