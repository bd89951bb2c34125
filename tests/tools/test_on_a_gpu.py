"""The script for a machine with a GPU runs over the double, so that it is known to work before there is a card."""

import json
import subprocess
import sys
from pathlib import Path

from packages import skip_without
from places import ROOT

skip_without("torch")

SCRIPT = ROOT / "tools" / "on_a_gpu.py"
CHECKS = ("track-pluggable", "guard-cudaMallocAsync", "breakdown", "pools", "fraction", "refusals", "history")


def test_the_checks_hold_over_the_double(tmp_path: Path) -> None:
    words = [sys.executable, SCRIPT, "--double", "--python", sys.executable, "--out", tmp_path, *CHECKS]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert {name: found["held"] for name, found in results.items()} == dict.fromkeys(CHECKS, True)
    golden = json.loads((tmp_path / "golden.json").read_text())
    assert {"breakdown", "pools", "fraction", "refusals", "history"} == golden.keys()
    assert [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("- card: none")]


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    words = [sys.executable, SCRIPT, "--python", sys.executable, "--out", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no card that torch can use")
