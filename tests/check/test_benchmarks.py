"""Memory in benchmark suites: with the real pytest-benchmark and asv, where they are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hiwater.contrib.benchmarks import memory_benchmark, memory_of
from hiwater.errors import BadRequest
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


def test_a_benchmark_has_a_unit() -> None:
    benchmark = memory_benchmark(load)
    assert (benchmark.unit, 3 * MIB <= benchmark(3) < 3.1 * MIB) == ("bytes", True)
    assert memory_benchmark(load, "allocations").unit == "allocations"
    with pytest.raises(BadRequest, match="peak_bytes"):
        memory_benchmark(load, "peak")


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


ASV_BENCHMARKS = """\
from hiwater.contrib.benchmarks import memory_benchmark

def load(blocks):
    return [bytearray(1 << 20) for _ in range(blocks)]

track_load = memory_benchmark(load)
track_load.params = [2, 4]

class Suite:
    def setup(self):
        self.blocks = 3

    track_method = memory_benchmark(lambda self: load(self.blocks))
"""


def test_asv_takes_them_as_benchmarks(tmp_path: Path) -> None:
    """As asv itself finds and runs them: discovery, then a process for each benchmark."""
    pytest.importorskip("asv_runner")
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "memory.py").write_text(ASV_BENCHMARKS, "utf-8")
    words = """\
import json, sys
from pathlib import Path
from asv_runner.discovery import disc_benchmarks
found = {}
for one in disc_benchmarks(sys.argv[1]):
    results = []
    for place in range(max(1, len(one.params[0]) if one.params else 1)):
        one.set_param_idx(place) if one.params else None
        one.do_setup()
        results.append(one.do_run())
    found[one.name] = [one.unit, results]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", words, str(folder)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    functions = {name.rpartition(".")[2]: value for name, value in found.items()}
    assert [round(count / MIB, 1) for count in functions["track_load_peak_bytes"][1]] == [2.0, 4.0]
    assert functions["track_method"][0] == "bytes"
    assert 3 * MIB <= functions["track_method"][1][0] < 3.1 * MIB
