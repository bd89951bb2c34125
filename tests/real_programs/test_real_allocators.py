"""Packages that bring an allocator of their own inside: what their blocks hold in RAM is found in mappings that name
the library."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

import hiwater
from children import run_command, run_hiwater
from hiwater.capture import Capture
from hiwater.capture.format import CODE_LABEL
from recording import child_environment, needs_engine

pytestmark = [needs_engine, pytest.mark.programs]

HOLD = """
import re
def resident():
    status = open("/proc/self/status").read()
    return int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]) * 1024
{imports}
before = resident()
{work}
print("grown", resident() - before)
"""
PROGRAMS = {
    "pyarrow": (
        "import pyarrow, pyarrow.compute as compute; one = pyarrow.array([1] * 1_000_000)",
        "kept = [compute.add(one, i) for i in range(30)]",
        "libarrow.so",
        "ARROW_DEFAULT_MEMORY_POOL=system",
    ),
    "polars": (
        "import polars; polars.DataFrame({'a': [1]}).with_columns(b=polars.col('a') * 2)",
        "kept = [polars.arange(0, 3_000_000, eager=True) + i for i in range(10)]",
        "polars",
        "polars has no switch",
    ),
    "duckdb": (
        "import duckdb; connection = duckdb.connect(); connection.execute('select 1')",
        "connection.execute(\"create table t as select i, hash(i) j, 'text ' || i s from range(4000000) t(i)\")",
        "duckdb",
        "duckdb has no switch",
    ),
}


def run(program: Path, *under: str | Path, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, *under, program]
    done = run_command(command, env=child_environment(environment))
    assert done.returncode == 0, done.stderr
    return done.stdout


def labelled(capture: Capture, library: str) -> int:
    """Bytes in RAM of the largest mappings by the library, as the last look at residency found them."""
    return sum(
        block.touched_bytes
        for block in capture.residency_snapshots[-1].large
        if block.frames and block.frames[-1].file.startswith("mapped by ") and library in block.frames[-1].file
    )


@pytest.mark.parametrize("package", PROGRAMS)
def test_what_a_library_allocates_by_itself_bears_its_name(tmp_path: Path, package: str) -> None:
    if importlib.util.find_spec(package) is None and not os.environ.get("HIWATER_TEST_ALL_PROGRAMS"):
        pytest.skip(f"{package} is not installed")
    imports, work, library, remedy = PROGRAMS[package]
    program, path = tmp_path / "program.py", tmp_path / "capture.hiw"
    program.write_text(HOLD.format(imports=imports, work=work))
    grown = int(run(program).split("grown ")[1])
    assert grown > 50e6
    run(program, "-m", "hiwater", "run", "-q", "-o", path)
    capture = hiwater.open(path)
    capture.check()
    assert capture.tables["codes"]["kind"].max() == CODE_LABEL
    assert labelled(capture, library) >= 0.9 * grown
    told = run_hiwater("report", path, "--full", check=True, environment={"COLUMNS": "400"})
    assert remedy in told.stdout
    # The line that had them mapped is the user's, not the label.
    lines = told.stdout.partition("\nYour lines")[2].partition("Stacks that held most")[0]
    assert "program.py" in lines
    assert "mapped by" not in lines


def test_the_switch_makes_blocks_visible(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None and not os.environ.get("HIWATER_TEST_ALL_PROGRAMS"):
        pytest.skip("pyarrow is not installed")
    imports, work, _, remedy = PROGRAMS["pyarrow"]
    program, path = tmp_path / "program.py", tmp_path / "capture.hiw"
    program.write_text(HOLD.format(imports=imports, work=work))
    name, _, value = remedy.partition("=")
    run(program, "-m", "hiwater", "run", "-q", "-o", path, environment={name: value})
    capture = hiwater.open(path)
    at_the_line = [s for s in capture.end.stacks if s.kind == "native" and any(f.line == 8 for f in s.frames)]
    assert sum(stack.bytes for stack in at_the_line) == pytest.approx(30 * 8_000_000, rel=0.05)
