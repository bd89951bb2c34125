"""sys._debugmallocstats() of a recorded program shows what it shows of a plain one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from children import run_hiwater
from recording import child_environment, needs_engine

pytestmark = needs_engine

PROGRAM = """
import sys
stats = sys._debugmallocstats
for _ in range(2):
    kept = [[i] for i in range(10_000)]
    stats()
    if len(sys.argv) > 1:
        import hiwater
        with hiwater.record(sys.argv[1]):
            stats()
            assert stats is sys._debugmallocstats
stats()
"""


def shown(text: str) -> list[str]:
    """The figures that are shown, without their values. Of sizes and of free objects there are rows for those that
    there are."""
    return [
        re.sub(r"[\d,]+", "0", line.partition("=")[0]).strip()
        for line in text.splitlines()
        if line.startswith(("#", "Small"))
    ]


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
@pytest.mark.parametrize("allocator", ["", "malloc", "debug"])
def test_figures_of_the_interpreters_allocator(tmp_path: Path, options: tuple[str, ...], allocator: str) -> None:
    chosen = {"PYTHONMALLOC": allocator} if allocator else {}
    environment = child_environment(chosen)
    plain = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    recorded = run_hiwater(
        "run", "-q", *options, "-o", tmp_path / "run.hiw", "-c", PROGRAM, check=True, environment=chosen
    )
    assert shown(recorded.stderr) == shown(plain.stderr)
    assert ("in use" in plain.stderr) == (allocator != "malloc")


def test_figures_around_and_inside_recordings(tmp_path: Path) -> None:
    environment = child_environment()
    plain = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "inner.hiw")]
    recorded = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert shown(recorded.stderr) == shown(plain.stderr)[: len(shown(plain.stderr)) // 3] * 5
