"""Installed programs around other libraries: everything leads with the line that a person would change, in the same
words.

The programs are installed as `pip install .` does and run with `-m` and by their console scripts. Those whose packages
are not among the test dependencies are marked `programs`: `make test-programs` installs what they need and runs all.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path

import pytest

from children import run_hiwater
from hiwater.cli import main
from installed_programs import Installed, install
from packages import skip_without
from page_reader import Page
from recording import needs_engine

pytestmark = needs_engine
PROGRAMS = sorted(Path(__file__).with_name("installed").glob("*.py"))
ALWAYS_THERE = {"flask", "jinja2", "numpy", "pandas"}
"""Packages that the test dependencies bring."""


def packages(program: Path) -> set[str]:
    tree = ast.parse(program.read_text())
    modules = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names]
    return {module.partition(".")[0] for module in modules} - STANDARD


STANDARD = {
    "asyncio",
    "collections",
    "concurrent",
    "dataclasses",
    "decimal",
    "email",
    "http",
    "io",
    "multiprocessing",
    "unittest",
    "xml",
}


def runs() -> list[object]:
    """Each program with each way and mode; in the usual run of the tests, each quick program with one of them, and a
    share of the others."""
    found: list[object] = []
    for program, way, sample in product(PROGRAMS, ("-m", "script"), ((), ("--sample", "16KiB"))):
        is_quick = packages(program) <= ALWAYS_THERE
        name = f"{program.stem} {way}{' sampled' if sample else ''}"
        mark = () if is_quick and way == "-m" and not sample else pytest.mark.grid if is_quick else pytest.mark.programs
        found.append(pytest.param(program, way, sample, id=name, marks=mark))
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(PROGRAMS, tmp_path_factory.mktemp("installed"))


def written(capture: Path, output: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said):
        assert main(["report", str(capture), "--format", output, "-o", "-"]) == 0
    return said.getvalue()


@pytest.mark.parametrize(("program", "way", "sample"), runs())
def test_everything_leads_with_the_line_to_change(
    program: Path, way: str, sample: tuple[str, ...], installed: Installed, tmp_path: Path
) -> None:
    if not os.environ.get("HIWATER_TEST_ALL_PROGRAMS"):
        skip_without(*packages(program))
    words = installed.command(program.stem, way)
    path = {"PYTHONPATH": str(installed.modules)}
    done = run_hiwater("run", *sample, "-o", "a.hiw", *words, folder=tmp_path, environment=path, check=True)
    (sentence,) = re.findall(r"^hiwater: (.* allocated at the peak.*)", done.stderr, re.MULTILINE)
    expected = next(
        number for number, text in enumerate(program.read_text().splitlines(), 1) if text.endswith("# HERE")
    )
    assert f"{program.name}:{expected} in " in sentence, done.stderr
    capture = tmp_path / "a.hiw"
    assert sentence in written(capture, "text").splitlines()
    assert f"**{sentence}**" in written(capture, "markdown").replace("\\", "")
    told, page = json.loads(written(capture, "json")), Page(written(capture, "html")).capture["summary"]
    assert "".join(told["answer"].values()) == "".join(page["answer"].values()) == sentence
    assert told["headline"]["line"] == expected
