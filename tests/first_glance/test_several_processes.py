"""The first lines of a report on several processes lead with what the first line of a report on one would."""

from __future__ import annotations

import html
import json
import re
import textwrap
from pathlib import Path

import pytest

from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

# Each process holds 12 MB, has 32 MiB that nothing ever touches, and waits for the other.
WORK = """
import mmap
import sys

def work():
    reserved = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held = [bytes([number]) * 1_000_000 for number in range(12)]
    print(flush=True)
    sys.stdin.readline()
    return reserved, held

kept = work()
"""
MAIN = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "work.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for _ in range(2)]
for child in children:
    child.stdout.readline()
time.sleep(0.5)  # until all of them have been read: what rises before its process has been read again is in doubt
for child in children:
    child.communicate(b"\\n")
"""


# One of the two programs runs twice; each has what its text says in its first line. With what else a process holds,
# which varies, it is a whole number of MiB.
COMMANDS = """
import subprocess, sys
texts = [f"held = bytearray(b'1') * (({size} << 20) - 20_000); print(flush=True); input()" for size in (20, 30, 30)]
children = [subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for text in texts]
for child in children:
    child.stdout.readline()
for child in children:
    child.communicate(b"\\n")
"""


def test_lines_of_different_commands_are_not_added_up(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(COMMANDS)
    said = run_hiwater("run", "-o", "run.hiw", "main.py", folder=tmp_path, check=True).stderr.splitlines()
    leads = re.search(r"most at (<-c [0-9a-f]{4}>):1 in <module>: 60\.0 MiB", said[1])
    assert leads, said[1]
    assert re.search(rf"most at {re.escape(leads[1])}:1 in <module>: 30\.0 MiB \((99\.\d|100\.0) %\)", said[2]), said[2]


def test_a_page_without_scripts_begins_with_the_last_lines_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(COMMANDS)
    said = run_hiwater("run", "-o", "run.hiw", "main.py", folder=tmp_path, check=True).stderr.splitlines()
    page = run_hiwater("report", "run.hiw", "--html", "-o", "-", folder=tmp_path, check=True).stdout
    summary = html.unescape(page.partition('<main class="summary">')[2].partition("</main>")[0])
    *first, capture = [line.removeprefix("hiwater: ") for line in said]
    assert capture.startswith("capture ") and len(first) == 4
    assert [line for line in first if f"<p>{line}</p>" not in summary] == []
    _, _, highest = first[2].partition("; most")
    assert f"<p><b>30.0 MiB allocated at the peak; most{highest}</b></p>" in summary


@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_memory_that_nothing_touched_does_not_lead(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "work.py").write_text(textwrap.dedent(WORK))
    (tmp_path / "main.py").write_text(textwrap.dedent(MAIN))
    run_hiwater("run", "-q", *options, "-o", "run.hiw", "main.py", folder=tmp_path)

    shown = run_hiwater("report", "run.hiw", "--no-pager", folder=tmp_path).stdout.splitlines()
    line = WORK.splitlines().index("    held = [bytes([number]) * 1_000_000 for number in range(12)]") + 1
    # Each process counts for what it had at the instant, which may be a little less than its stacks.
    lead = r"allocated at once by 3 processes, 6[34]\.\d MiB of it never touched; most of the rest at work\.py:"
    assert re.search(lead, shown[1]), shown[1]
    assert f"work.py:{line} in work: " in shown[1] and shown[1].endswith(" over all of them")
    assert ", 32.0 MiB of it never touched; most of the rest at work.py:" in shown[2]

    report = json.loads(run_hiwater("report", "run.hiw", "--format", "json", "-o", "-", folder=tmp_path).stdout)
    headline = report["aggregate"]["headline"]
    assert (headline["line"], headline["group"]) == (line, "line")
    assert 20_000_000 < headline["bytes"] < 30_000_000
