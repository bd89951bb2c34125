"""Reports as Markdown: of one process, and of several."""

from __future__ import annotations

from pathlib import Path

import pytest

from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

PROGRAM = """\
import os, sys
def load(count):
    return [b"|" * 1_000 + bytes([number % 256]) for number in range(count)]
kept = load(5_000)
if sys.argv[1:] and os.fork() == 0:
    more = load(9_000)
    os._exit(0)
if sys.argv[1:]:
    os.wait()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("markdown")
    (folder / "a_b.py").write_text(PROGRAM)
    for name, words in (("one", []), ("two", ["fork"])):
        run_hiwater("run", "-q", "-o", f"{name}.hiw", "a_b.py", *words, folder=folder, check=True)
    return folder


def shown(folder: Path, name: str) -> list[str]:
    return run_hiwater("report", name, "--format", "markdown", folder=folder, check=True).stdout.splitlines()


def test_one_process_leads_with_the_line_that_holds_most(folder: Path) -> None:
    lines = shown(folder, "one.hiw")

    assert lines[0] == "### Memory of `a_b.py`"
    assert lines[2].startswith("**5.0 MiB allocated at the peak; most at a\\_b.py:3 in load: ")
    header = lines.index("| held | share | line | source |")
    first = lines[header + 2]
    assert '| `a_b.py:3` | `return [b"\\|" * 1_000 +' in first
    assert all(line.replace("\\|", "").count("|") == 5 for line in lines[header : lines.index("", header)])


def test_several_processes_lead_with_what_they_held_at_once(folder: Path) -> None:
    lines = shown(folder, "two.hiw")

    assert lines[0] == "### Memory of 2 processes"
    assert "allocated at once by 2 processes; most at a\\_b.py:3 in load: " in lines[2]
    assert lines[3].startswith("- highest: ") and "peak 8.9 MiB" in lines[3]
    assert len([line for line in lines if line.startswith("| `process ")]) == 2
