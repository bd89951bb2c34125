"""Advice, on real programs: what each must find and must not, in exact and sampled recordings, and that a repaired
program saves what was promised."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from hiwater.analysis.advice import MOST_FINDINGS, Finding, Rule, findings_of
from hiwater.analysis.advice.finding import ALLOCATED, ALLOCATED_PEAK, PRIVATE, RESIDENT_END
from hiwater.capture import Capture
from hiwater.report.advice import sentence
from hiwater.report.formatting import size
from packages import skip_without
from recording import needs_engine

pytestmark = needs_engine
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
SAMPLED = ("--sample", "64KiB")
_NOISE = 512 << 10  # what the figures of two runs of one program may differ by: imports, and pages of the C library
# With OpenBLAS's default, 32 MiB and more of untouched buffers are part of every peak, by the number of processors.
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Program:
    """A program that says in its first line what advice must find in it, and in `# HERE` at which line. Without the
    lines that end in `# HERE` or `# BEFORE`, and with those that begin with `#: `, it is repaired."""

    name: str
    text: str

    @property
    def rule(self) -> Rule | None:
        said = self.text.partition("Finds: ")[2].split(".")[0].split(",")[0]
        return None if said == "nothing" else Rule[said]

    @property
    def line(self) -> int:
        return next(number for number, line in enumerate(self.text.splitlines(), 1) if line.endswith("# HERE"))

    @property
    def repaired(self) -> str:
        kept = [line for line in self.text.splitlines() if not line.endswith(("# HERE", "# BEFORE"))]
        return "\n".join(line.replace("#: ", "", 1) for line in kept) + "\n"


def program(name: str) -> Program:
    """A program of the folder. Skips the test where a library is missing that it imports."""
    text = (Path(__file__).parent / "programs" / f"{name}.py").read_text()
    for library in ("numpy", "pandas"):
        if f"import {library}" in text:
            skip_without(library)
    return Program(name, text)


@dataclass(frozen=True)
class Recording:
    """The captures of a run, the first process first, and what the program printed."""

    captures: list[Capture]
    printed: str

    @property
    def findings(self) -> list[Finding]:
        return [finding for capture in self.captures for finding in findings_of(capture)]

    def measured(self, measures: str) -> int:
        """The memory that a saving is of, in the last process."""
        capture = self.captures[-1]
        if measures in (ALLOCATED_PEAK, ALLOCATED):
            return capture.peak.allocated_bytes
        if measures == RESIDENT_END:
            return capture.residency_snapshots[-1].resident_bytes
        assert measures == PRIVATE
        return int(self.printed.partition("private: ")[2].split()[0]) * 1024


def recorded(folder: Path, name: str, text: str, *options: str) -> Recording:
    """Record a program."""
    path = folder / f"{name}.py"
    path.write_text(text)
    os.utime(path, (1, 1))  # a source that is newer than the recording counts as changed
    command = [sys.executable, "-m", "hiwater", "run", "-q", *options, "-o", f"{name}.hiw", path.name]
    run = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    children = sorted((folder / f"{name}.hiw.d").glob("*.hiw"))
    return Recording([hiwater.open(one) for one in (folder / f"{name}.hiw", *children)], run.stdout)


@pytest.mark.grid
@pytest.mark.parametrize("options", [(), SAMPLED], ids=["exact", "sampled"])
@pytest.mark.parametrize("name", [path.stem for path in PROGRAMS])
def test_a_program_gets_the_advice_that_it_needs_and_no_other(
    name: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    asked = program(name)
    run = recorded(tmp_path, name, asked.text, *options)
    found = run.findings
    assert [finding.rule for finding in found] == ([asked.rule] if asked.rule else [])
    for finding in found:
        place = (f"{tmp_path}/{name}.py", asked.line)
        assert finding.frame is not None and (finding.frame.file, finding.frame.line) == place
        assert 1 << 20 <= finding.saving.least_bytes <= finding.saving.most_bytes
        assert any(("sampled" if options else "exact") in figure.measures for figure in finding.evidence)
        assert size(finding.saving.least_bytes) in sentence(finding) and finding.change in sentence(finding)
    if asked.rule is None:
        return
    (finding,) = found
    saving = finding.saving
    repaired = recorded(tmp_path, f"{name}_repaired", asked.repaired, *options)
    errors = [one.captures[-1].peak.standard_error_bytes for one in (run, repaired)]
    fallen = run.measured(saving.measures) - repaired.measured(saving.measures)
    assert fallen >= saving.least_bytes - _NOISE - 2 * sum(errors)
    assert asked.rule not in [one.rule for one in repaired.findings]


def test_every_rule_has_a_program_and_there_are_clean_ones() -> None:
    rules = [Program(path.stem, path.read_text()).rule for path in PROGRAMS]
    assert set(rules) == {*Rule, None}
    assert len(rules) >= 30 and rules.count(None) >= len(rules) // 2


def test_text_notebook_and_json_say_the_same(tmp_path: Path) -> None:
    asked = program("bytearray_grown")
    (capture,) = recorded(tmp_path, "a", asked.text).captures
    (finding,) = findings_of(capture)

    def told(*options: str) -> str:
        return " ".join(run_hiwater("report", "a.hiw", *options, folder=tmp_path, check=True).stdout.split())

    said = json.loads(told("--format", "json"))
    (explained,), (hint,) = said["explain"], said["hints"]
    assert explained["rule"] == hint["pattern"] == "over-allocated container"
    assert explained["line"] == hint["line"] == asked.line and hint["words"] == sentence(finding)
    assert explained["saving"]["least_bytes"] == finding.saving.least_bytes and len(said["explain"]) <= MOST_FINDINGS
    assert f"a.py:{asked.line}: {sentence(finding)}" in told()
    for text in (told("--full"), told("--explain")):
        assert f"a.py:{asked.line} {finding.rule.value}: {explained['saving']['words']}" in text
        assert "capacity: " in text and "(allocated, at the peak, exact)" in text


def test_explain_says_so_where_nothing_was_found(tmp_path: Path) -> None:
    recorded(tmp_path, "a", program("clean_list_full").text)
    explained = run_hiwater("report", "a.hiw", "--explain", folder=tmp_path, check=True)
    assert "No advice: no rule found" in explained.stdout
    plain = run_hiwater("report", "a.hiw", folder=tmp_path, check=True)
    assert "What to change" not in plain.stdout and "No advice" not in plain.stdout
    wrong = run_hiwater("report", "a.hiw", "--explain", "--html", folder=tmp_path)
    assert wrong.returncode == 2 and "--explain is for text" in wrong.stderr
