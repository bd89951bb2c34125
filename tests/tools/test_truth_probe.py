"""The programs that `make release-check` records in each installation are recorded right in this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from children import run_python
from places import ROOT
from recording import child_environment, needs_engine

PROBE = ROOT / "tools" / "truth_probe.py"


@needs_engine
def test_all_figures_are_right_here() -> None:
    done = run_python(PROBE, env=child_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "19 of 19 figures are right\n", "")


@pytest.mark.parametrize(
    ("known", "told", "right"),
    [(0, 0, 0), (1 << 20, 1 << 20, 0), (0, 70_000, 1), (1 << 20, 900_000, 1), (1 << 20, 0, 1)],
)
def test_a_wrong_figure_is_not_right(known: int, told: int, right: int) -> None:
    words = f"import sys, truth_probe; sys.exit(not truth_probe.is_right({known}, {told}))"
    assert subprocess.run([sys.executable, "-c", words], cwd=PROBE.parent, check=False).returncode == right
