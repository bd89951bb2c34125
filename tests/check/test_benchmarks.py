"""Memory in benchmark suites: with the real pytest-benchmark, where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hiwater.contrib.benchmarks import memory_of
from recording import needs_engine

pytestmark = needs_engine
MIB = 1 << 20


def load(blocks: int, kept: int = 0) -> list[bytearray]:
    held = [bytearray(MIB) for _ in range(blocks)]
    return held[:kept]


def test_the_figures_are_those_of_the_call_alone() -> None:
    before = load(20, kept=20)
    figures = memory_of(load, 5, kept=2)
    assert len(before) == 20
    assert 5 * MIB <= figures["peak_bytes"] < 5.1 * MIB
    assert 5 * MIB <= figures["allocated_bytes"] < 5.5 * MIB
    assert 2 * MIB <= figures["kept_bytes"] < 2.1 * MIB
    assert figures["allocations"] >= 5


def test_an_exception_is_the_functions_own() -> None:
    with pytest.raises(ZeroDivisionError):
        memory_of(lambda: 1 / 0)
    assert memory_of(load, 1)["peak_bytes"] >= MIB


BENCHMARK_TEST = """\
from hiwater.contrib.benchmarks import memory_of

def load(blocks):
    return [bytearray(1 << 20) for _ in range(blocks)]

def test_load(benchmark):
    benchmark.pedantic(load, args=(3,), rounds=2)
    benchmark.extra_info.update(memory_of(load, 3))
"""


def test_pytest_benchmark_has_them_in_its_extra_info(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    (tmp_path / "test_load.py").write_text(BENCHMARK_TEST, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:monitor", "--benchmark-json=found.json", "test_load.py"]
    # It measures nothing in a worker of xdist, which it knows by a variable.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (benchmark,) = json.loads((tmp_path / "found.json").read_text("utf-8"))["benchmarks"]
    assert 3 * MIB <= benchmark["extra_info"]["peak_bytes"] < 3.1 * MIB
