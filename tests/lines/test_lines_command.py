"""`hiwater lines` and `@hiwater.profile` as they are used: in whole programs, that end well or badly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capture_builder import Recording
from children import run_hiwater
from example_captures import small
from hiwater.analysis.lines import annotate
from hiwater.capture import open as open_capture
from recording import child_environment, needs_engine

SCRIPT = """\
import sys
@profile
def load(n):
    rows = [bytes(1000) for _ in range(n)]
    total = len([0] * 5_000_000)
    return rows

def other():
    return bytearray(3_000_000)

kept = load(1000), other()
print(sys.argv[1:], __name__, __file__)
"""


def hiwater(folder: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_hiwater(*words, folder=folder, environment=environment)


def row(report: str, source: str) -> list[str]:
    """The cells of the line with this source: line, calls, kept, allocated, peak, resident."""
    line = next(line for line in reversed(report.splitlines()) if line.endswith(source))
    return re.split(r"\s{2,}", line.removesuffix(source).strip())


def without_engine(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a build that has no engine, or as good as that."""
    code = "import sys; sys.modules['hiwater._core'] = None; from hiwater.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300, env=child_environment(),
    )  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@needs_engine
def test_a_program_runs_as_ever_and_its_marked_functions_are_shown(script: Path) -> None:
    done = hiwater(script.parent, "lines", "script.py", "a", "--all")
    assert done.returncode == 0
    assert done.stdout == f"['a', '--all'] __main__ {script}\n"
    # From 3.14 on an int comes from the interpreter's list of free ones.
    kept = "28 B" if sys.version_info < (3, 14) else "·"
    assert row(done.stderr, "total = len([0] * 5_000_000)")[:5] == ["5", "1", kept, "38.1 MiB", "38.1 MiB"]
    assert row(done.stderr, "rows = [bytes(1000) for _ in range(n)]")[2].startswith("1017.")
    assert "bytearray(3_000_000)" not in done.stderr


@needs_engine
@pytest.mark.parametrize(
    ("last", "code"), [("1 / 0", 1), ("sys.exit(7)", 7), ("import atexit; atexit.register(lambda: load(5))", 0)]
)
def test_the_report_survives_whatever_ends_the_program(script: Path, last: str, code: int) -> None:
    script.write_text(SCRIPT + last + "\n")
    done = hiwater(script.parent, "lines", "script.py")
    assert done.returncode == code
    assert row(done.stderr, "total = len([0] * 5_000_000)")[1] == ("2" if "atexit" in last else "1")
    if code == 1:
        assert "ZeroDivisionError" in done.stderr and "hiwater" not in done.stderr.partition("load  ")[0]


@needs_engine
def test_an_exception_inside_a_marked_function(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "lines", "-c", "@profile\ndef f():\n    x = bytearray(10**6)\n    raise KeyError(x)\nf()")
    assert done.returncode == 1
    # A bytearray lies in a bytes object from 3.15 on.
    assert row(done.stderr, "x = bytearray(10**6)")[2] in {
        "976.6 KiB",
        "976.7 KiB",
    }
    assert row(done.stderr, "raise KeyError(x)")[1] == "1"
    assert "f  <-c>:1" in done.stderr and 'File "<string>", line 5' in done.stderr


@needs_engine
def test_functions_by_name_the_whole_script_and_json(script: Path) -> None:
    script.write_text(SCRIPT.replace("@profile\n", "\n"))
    done = hiwater(script.parent, "lines", "--all", "--format", "json", "-o", "out.json", "script.py")
    assert "hiwater: lines " in done.stderr
    said = json.loads((script.parent / "out.json").read_text())
    assert said["schema"] == "hiwater.lines/1"
    lines = {line["line"]: line for line in said["functions"][0]["lines"]}
    assert lines[9]["kept_bytes"] > 2_900_000 and lines[11]["kept_bytes"] > 3_900_000
    done = hiwater(script.parent, "lines", "-f", "textwrap:dedent", "-c", "import textwrap; textwrap.dedent(' a')")
    assert done.returncode == 0 and "def dedent" in done.stderr
    done = hiwater(script.parent, "lines", "-f", "textwrap:nothing", "-c", "pass")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_nothing_marked_is_said(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "lines", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "no function was marked" in done.stderr


def test_without_the_engine_lines_are_of_resident_memory_alone(script: Path) -> None:
    script.write_text(SCRIPT.replace("bytes(1000)", "b'x' * 10_000"))
    done = without_engine(script.parent, "lines", "script.py", "a")
    assert (done.returncode, done.stdout) == (0, f"['a'] __main__ {script}\n")
    assert "line     calls     resident  source" in done.stderr and "kept" not in done.stderr
    assert "there are no heap figures, this hiwater was built without its engine" in done.stderr
    cells = row(done.stderr, "rows = [b'x' * 10_000 for _ in range(n)]")
    # 9.5 MiB, of which some comes out of what imports have freed.
    assert cells[:2] == ["4", "1"] and 8 < float(cells[2].removesuffix(" MiB")) < 11
    done = without_engine(script.parent, "lines", "--all", "--format", "json", "-c", "x = b'x' * 30_000_000")
    said = json.loads(done.stdout)
    assert said["why_without_heap"].startswith("this hiwater was built without its engine")
    (line,) = said["functions"][0]["lines"]
    assert line["kept_bytes"] is line["allocated_bytes"] is line["peak_bytes"] is None
    assert line["resident_bytes"] == pytest.approx(30_000_000, abs=1 << 20)


def test_without_the_engine_and_resident_memory_nothing_is_left(script: Path) -> None:
    done = without_engine(script.parent, "lines", "--no-resident", "script.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert "built without its engine" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 2), (("--nonsense", "x.py"), 2), (("--format", "svg", "x.py"), 2), (("--precision", "x", "y.py"), 2),
     (("missing.py",), 127), (("-o",), 2), (("-m",), 2)],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    done = hiwater(tmp_path, "lines", *words)
    assert done.returncode == code
    assert done.stdout == "" and done.stderr.startswith("hiwater: ") and done.stderr.count("\n") == 1
    assert hiwater(tmp_path, "lines", "--help").stdout.startswith("usage: hiwater lines")


@needs_engine
def test_the_decorator_prints_at_the_end_to_where_it_is_told(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import hiwater, sys\n"
        "@hiwater.profile\ndef bare():\n    return bytearray(1 << 20)\n"
        "@hiwater.profile(stream=open('out.txt', 'w'), precision=3, resident=False)\n"
        "def told():\n    return bytearray(1 << 20)\n"
        "bare(); told()\nraise SystemExit(3)\n"
    )
    run = [sys.executable, "program.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, env=child_environment())
    assert (done.returncode, done.stdout) == (3, "")
    assert "bare  program.py:2" in done.stderr and "told" not in done.stderr and "1.0 MiB" in done.stderr
    written = (tmp_path / "out.txt").read_text()
    assert "told  program.py:5" in written and "1.000 MiB" in written and "peak above  source" in written
    off = child_environment({"HIWATER_PROFILE": "0"})
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, env=off)
    assert (done.returncode, done.stderr) == (3, "")


@needs_engine
def test_children_print_nothing_and_are_added(tmp_path: Path) -> None:
    text = (
        "import hiwater, os, sys\n@hiwater.profile\ndef f(n):\n    return bytearray(n)\n"
        "f(10)\nif os.fork() == 0:\n    f(20)\n    sys.exit(0)\nos.wait()\n"
    )
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0
    assert done.stderr.count("return bytearray(n)") == 1
    assert row(done.stderr, "return bytearray(n)")[1] == "2"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "run.hiw"
    path.write_bytes(small().to_bytes())
    return path


def test_a_capture_annotates_the_files_of_its_call_tree(capture: Path) -> None:
    read = open_capture(capture)
    files = annotate(read.peak, read.end)
    assert [(file.file, file.bytes, file.is_own) for file in files] == [("/app/etl.py", 5596, True)]
    lines = {line.line: line for line in files[0].lines}
    assert sorted(lines) == [3, 7, 10, 12]
    assert (lines[12].bytes, lines[12].self_bytes, lines[12].blocks) == (4596, 0, 2)
    assert (lines[3].bytes, lines[3].self_bytes, lines[3].end_bytes, lines[3].total_bytes) == (1000, 1000, 0, 1000)
    assert files[0].bytes == sum(line.self_bytes for line in files[0].lines)


def test_the_view_of_a_captures_lines(capture: Path) -> None:
    folder = capture.parent
    text = hiwater(folder, "report", "run.hiw", "--format", "lines").stdout
    assert "/app/etl.py  held 5.5 KiB" in text
    assert (
        "/app/etl.py  held 4.5 KiB" in hiwater(folder, "report", "run.hiw", "--format", "lines", "--at", "end").stdout
    )
    refused = hiwater(folder, "lines", "run.hiw")
    assert refused.returncode == 2 and "hiwater report run.hiw --format lines" in refused.stderr


def test_the_lines_of_libraries_are_shown_where_they_are_asked_for(tmp_path: Path) -> None:
    recording = Recording()
    recording.allocate(recording.path(("load", "/usr/lib/python3.11/site-packages/other/load.py", 3)), 1000)
    recording.end()
    (tmp_path / "run.hiw").write_bytes(recording.to_bytes())
    shown = hiwater(tmp_path, "report", "run.hiw", "--format", "lines").stdout
    assert "other/load.py" not in shown and "--source all" in shown
    assert (
        "other/load.py  held 1000 B"
        in hiwater(tmp_path, "report", "run.hiw", "--format", "lines", "--source", "all").stdout
    )


@needs_engine
def test_recursion_in_a_capture_has_each_byte_once(tmp_path: Path) -> None:
    text = "def dive(n):\n    b = bytearray(1 << 20)\n    return b, (dive(n - 1) if n else None)\nkept = dive(9)\n"
    (tmp_path / "program.py").write_text(text)
    assert hiwater(tmp_path, "run", "-q", "-o", "run.hiw", "program.py").returncode == 0
    read = open_capture(tmp_path / "run.hiw")
    (file,) = (file for file in annotate(read.peak, read.end) if file.file.endswith("program.py"))
    lines = {line.line: line for line in file.lines}
    assert lines[2].bytes == pytest.approx(10 << 20, rel=0.01)
    assert lines[3].bytes == pytest.approx(9 << 20, rel=0.01)
    assert lines[4].bytes == pytest.approx(10 << 20, rel=0.01)
    text = hiwater(tmp_path, "report", "run.hiw", "--format", "lines").stdout
    assert "return b, (dive(n - 1) if n else None)" in text
