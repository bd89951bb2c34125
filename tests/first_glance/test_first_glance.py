"""Programs, each with one line that a person would have to change: everything that hiwater shows names that line
first."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import compiled
import hiwater
from hiwater._os.sizes import format_size
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture.residency_snapshots import highest
from hiwater.cli import main
from packages import skip_without
from page_reader import Page
from recording import needs_engine

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
skip_without("pandas", "sklearn")


def run(program: Path, capture: Path, *options: str) -> list[str]:
    """The lines that the run ends with."""
    words = [sys.executable, "-m", "hiwater", "run", *options, "-o", capture, program.name]
    done = subprocess.run(words, cwd=program.parent, capture_output=True, text=True, check=True, timeout=300)
    return [line for line in done.stderr.splitlines() if line.startswith("hiwater: ")]


def report(capture: Path, output: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["report", str(capture), "--format", output, "-o", "-"]) == 0
    return said.getvalue()


def summary_of(page: str) -> dict[str, Any]:
    return Page(page).capture["summary"]


@needs_engine
@pytest.mark.parametrize(
    "options", [pytest.param((), id="exact"), pytest.param(("--sample", "16KiB"), id="sampled", marks=pytest.mark.grid)]
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_everything_names_the_line_to_change_first(program: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    expected = next(
        number for number, text in enumerate(program.read_text().splitlines(), 1) if text.endswith("# HERE")
    )
    place = f"{program.name}:{expected}"
    capture = tmp_path / "a.hiw"
    said = run(program, capture, *options)
    assert re.search(rf"allocated at the peak.*; most.* at {re.escape(place)} in ", said[1]), said
    told = json.loads(report(capture, "json"))
    headline = told["headline"]
    assert (Path(headline["file"]).name, headline["line"]) == (program.name, expected)
    text = report(capture, "text").partition("\nYour lines")[2].splitlines()
    assert place in text[1], text[:6]
    assert summary_of(report(capture, "html"))["headline"] == headline
    # One figure, one word: the run's last lines, the text and JSON say the same.
    count = headline["untouched_bytes" if said[1].endswith("allocated and never touched") else "bytes"]
    assert format_size(count, 1) in said[1] and format_size(count, 1) in text[1]
    ranking = rank_lines(hiwater.open(capture).tables, hiwater.open(capture).peak.holdings())
    assert sum(row.bytes + row.untouched_bytes for row in ranking.rows) == told["peak"]["allocated_bytes"]
    if not options:
        check_that_the_breakdown_is_within_a_twentieth_of_the_resident_peak(program, capture)


def check_that_the_breakdown_is_within_a_twentieth_of_the_resident_peak(program: Path, capture: Path) -> None:
    shares = [share_of_breakdown(capture)]
    # The program waits for a snapshot for a limited time: on a very busy machine one may come too late.
    while len(shares) < 10 and max(shares) < 0.95:
        run(program, capture)
        shares.append(share_of_breakdown(capture))
    assert max(shares) >= 0.95, shares


def share_of_breakdown(path: Path) -> float:
    capture = hiwater.open(path)
    snapshot = highest(capture.residency_snapshots)
    assert snapshot is not None
    return snapshot.resident_bytes / capture.resident.peak_bytes


@needs_engine
def test_what_a_library_reserves_and_never_touches_is_not_the_line_to_change(tmp_path: Path) -> None:
    library = compiled.library("mappings")
    program, capture = tmp_path / "reserves.py", tmp_path / "a.hiw"
    program.write_text(
        "import ctypes, mmap\n"
        f"library = ctypes.CDLL({str(library)!r})\n"
        "library.map_anonymous.restype = ctypes.c_void_p\n"
        "library.map_anonymous.argtypes = [ctypes.c_size_t]\n"
        "arena = library.map_anonymous(512 << 20); ctypes.memset(arena, 1, 48 << 20)\n"
        "kept = bytearray(b'1') * (20 << 20)\n"
    )
    said = run(program, capture)
    words = "464.0 MiB of it never touched; most of the rest at reserves.py:5 in <module>: 48.0 MiB"
    assert words in said[1]
    told = json.loads(report(capture, "json"))
    assert (told["headline"]["line"], told["headline"]["untouched_bytes"]) == (5, 0)
    assert 48 << 20 <= told["headline"]["bytes"] < (48 << 20) + 1000  # and the number that is its address
    (reserved,) = [row for row in told["lines"]["rows"] if row["untouched_bytes"] > 1 << 20]
    assert (reserved["group"], reserved["function"], reserved["file"]) == ("other", "mappings.so", "")
    assert reserved["untouched_bytes"] == told["lines"]["untouched_bytes"] == 464 << 20
    assert told["explain"] == []
    text = report(capture, "text")
    assert words in text
    assert re.search(r"464.0 MiB +[\d.]+ %  never touched, so not in RAM, all at mappings.so", text)
    page = Page(report(capture, "html"))
    assert page.capture["summary"]["headline"] == told["headline"]
    rows = page.capture["user_lines"]["rows"]
    never = zip(page.column("user_lines", "untouched_row"), page.column("user_lines", "untouched_bytes"), strict=True)
    assert [(rows[row]["function"], count) for row, count in never if count] == [("mappings.so", 464 << 20)]


@needs_engine
def test_a_refused_request_is_said_first(tmp_path: Path) -> None:
    program = tmp_path / "asks.py"
    program.write_text(
        "def ask(size):\n    try:\n        return bytearray(size)\n    except MemoryError:\n"
        "        return None\n\nask(1 << 46)\nask(1 << 47)\n"
    )
    said = run(program, tmp_path / "a.hiw")
    assert said[0] == "hiwater: 2 requests for memory were refused, the last of 128.0 TiB at asks.py:3 in ask"
    assert said[1].startswith("hiwater: peak ")
