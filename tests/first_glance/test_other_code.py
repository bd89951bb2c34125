"""Memory that no line of the program's own code called: it leads every report where the lines hold next to nothing,
and nowhere else."""

import json
import re
from pathlib import Path

import pytest

from children import run_hiwater
from page_reader import Page
from recording import needs_engine

pytestmark = needs_engine
LIBRARY = """
import atexit

KEPT = []

def _work(size):
    KEPT.append(bytearray(size))

def start(size):
    atexit.register(_work, size)
"""


def run(folder: Path, program: str) -> list[str]:
    """The lines that the run of a program ends with, which can import `pooled`, an installed library; the capture is
    a.hiw."""
    library = folder / "site-packages" / "pooled.py"
    library.parent.mkdir()
    library.write_text(LIBRARY)
    library.with_name("held_at_import.py").write_text("kept = bytearray(b'1') * 550_000\n")
    (folder / "program.py").write_text(program)
    return record(folder, "program.py")


def record(folder: Path, *words: str) -> list[str]:
    path = {"PYTHONPATH": str(folder / "site-packages")}
    done = run_hiwater("run", "-o", "a.hiw", *words, folder=folder, environment=path, check=True)
    return [line for line in done.stderr.splitlines() if line.startswith("hiwater: ")]


def report(folder: Path, output: str) -> str:
    return run_hiwater("report", "a.hiw", "--format", output, "-o", "-", folder=folder, check=True).stdout


def test_it_leads_where_the_lines_hold_next_to_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, "import pooled\nkept = bytearray(b'1') * 1_000_000\npooled.start(30 << 20)\n")
    told = json.loads(report(tmp_path, "json"))
    headline, other = told["headline"], told["lines"]["other_bytes"]
    assert (headline["group"], headline["function"], headline["line"]) == ("other", "_work", 7)
    assert 30 << 20 <= headline["bytes"] <= other < 31 << 20
    words = "code that none of your lines called"
    lines = report(tmp_path, "text").splitlines()
    assert f"; most by {words}: 30." in lines[1] and "30.0 MiB of it at site-packages/pooled.py:7 in _work" in lines[1]
    assert said[1] == f"hiwater: {lines[1]}"
    rows = lines[next(number for number, line in enumerate(lines) if line.startswith("Your lines")) + 1 :]
    assert words in rows[0] and "program.py:2" in rows[1 if "program.py" in rows[1] else 2]
    page = Page(report(tmp_path, "html"))
    assert page.capture["summary"]["headline"] == headline
    assert page.capture["summary"]["lines"]["other_bytes"] == other


@pytest.mark.parametrize(
    ("mine", "others", "group"), [(9 << 20, 30 << 20, "line"), (100_000, 900_000, "line"), (7 << 20, 30 << 20, "other")]
)
def test_it_leads_only_where_it_is_large_and_four_times_the_lines(
    tmp_path: Path, mine: int, others: int, group: str
) -> None:
    said = run(tmp_path, f"import pooled\nkept = bytearray(b'1') * {mine}\npooled.start({others})\n")
    headline = json.loads(report(tmp_path, "json"))["headline"]
    assert headline["group"] == group
    place = "program.py:2 in <module>" if group == "line" else "pooled.py:7 in _work"
    assert place in said[1]


def test_imports_do_not_lead_where_other_code_holds_more_but_too_little_to_lead_itself(tmp_path: Path) -> None:
    said = run(
        tmp_path, "import held_at_import\nimport pooled\npooled.start(900_000)\nkept = bytearray(b'1') * 50_000\n"
    )
    told = json.loads(report(tmp_path, "json"))
    assert 500_000 < told["lines"]["imports_bytes"] < told["lines"]["other_bytes"] < 1 << 20
    assert told["headline"]["group"] == "line"
    assert "program.py:4 in <module>" in said[1]
    assert "most at program.py:4 in <module>" in report(tmp_path, "text").splitlines()[1]


def test_a_program_without_lines_of_its_own_is_told_by_its_libraries(tmp_path: Path) -> None:
    said = run(tmp_path, "")
    assert " allocated at the peak" in said[1]
    (tmp_path / "site-packages" / "pooled.py").write_text("KEPT = bytearray(30 << 20)\n")
    said = record(tmp_path, "-m", "pooled")
    (headline,) = [
        line
        for line in report(tmp_path, "text").splitlines()
        if "; most at site-packages/pooled.py:1 in <module>: 30.0 MiB" in line
    ]
    assert said[1] == f"hiwater: {headline}"


def test_an_import_that_no_line_of_the_users_asked_for_is_where_the_library_imports(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "large.py").write_text("\n".join(f"def f{n}(a={n!r}): return a + {n}" for n in range(20_000)))
    (packages / "tool.py").write_text("import large\n")
    (tmp_path / "program.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'tool'], check=True)\n"
    )
    said = record(tmp_path, "program.py")
    assert any("highest: " in line and "most by imports: " in line for line in said), said
    (child,) = (tmp_path / "a.hiw.d").glob("*.hiw")
    lines = run_hiwater("report", str(child), folder=tmp_path, check=True).stdout.splitlines()
    for line in [lines[1], *(line for line in said if "most by imports: " in line)]:
        assert re.search(r"; most by imports: .* of it at site-packages/tool\.py:1 in <module>$", line), line
