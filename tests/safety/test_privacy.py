"""What a capture contains of its program, and what it does not."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

PROGRAM = """
password = "value-of-a-variable"
class Kept: pass
kept = Kept()
kept.attribute = {"key-of-a-dict": [b"value-of-a-block" * 1000 for _ in range(100)]}  # text-of-the-source
"""
NEVER = (
    b"value-of-a-variable",
    b"value-of-a-block",
    b"key-of-a-dict",
    b"text-of-the-source",
    b"value-of-the-environment",
)


@pytest.mark.parametrize("has_arguments", [True, False])
def test_a_capture_has_names_sizes_and_arguments(has_arguments: bool, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = [] if has_arguments else ["--no-argv"]
    run_hiwater(
        "run", "-q", "--holders", *options, "-o", "run.hiw", "program.py", "argument-of-the-program", folder=tmp_path,
        check=True, environment={"SECRET": "value-of-the-environment"},
    )  # fmt: skip
    content = (tmp_path / "run.hiw").read_bytes()
    assert [secret for secret in NEVER if secret in content] == []
    assert (b"argument-of-the-program" in content) == has_arguments
    assert b"attribute" in content and b"Kept" in content  # of the search for holders
    assert stat.S_IMODE((tmp_path / "run.hiw").stat().st_mode) == 0o600
