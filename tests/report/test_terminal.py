"""Views for people on real terminals (pseudo-terminals): as wide as these are, with links there and nowhere else."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from capture_builder import Recording
from children import run_hiwater
from example_captures import in_memory
from hiwater.capture import Frame
from hiwater.report.text.terminal import Page
from hiwater.report.text.timeline import over_time

LINK = re.compile(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b\\")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Deep paths, long names, many lines; and a source file that is there."""
    source = tmp_path / "work.py"
    source.write_text(
        "".join(
            f"value{number} = make({number}, 'a rather long line of source text, to be cut', {'x' * 80!r})\n"
            for number in range(60)
        )
    )
    recording = Recording()
    recording.fact("cwd", str(tmp_path))
    recording.fact(
        "argv", '["work.py", "--with", "a rather long list of arguments", "of", "which", "some", "will", "not", "fit"]'
    )
    recording.header["started_unix_ns"] = 1 << 62
    library = "/somewhere/quite/far/away/lib/python3.11/site-packages/a_package/with/folders/module_of_some_length.py"
    for number in range(8):
        frames = [
            ("<module>", "work.py", 1 + number),
            *((f"LongClassName{n}.and_method_{n}", library, n) for n in range(6)),
        ]
        recording.allocate(recording.path(*frames), 1000 * (number + 1), "native" if number % 2 else "python")
        recording.sample(1_000_000 * number)
    recording.end()
    path = tmp_path / "run.hiw"
    path.write_bytes(recording.to_bytes())
    return path


def on_terminal(columns: int, *words: str, **environment: str) -> str:
    """What `hiwater WORDS` writes to a terminal this wide."""
    return python_on_terminal(columns, "-m", "hiwater", *words, **environment)


def python_on_terminal(columns: int, *words: str, **environment: str) -> str:
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    }
    process = subprocess.Popen(
        [sys.executable, *words], stdout=other, stderr=other, stdin=other,
        # Where a machine is slow there is no progress line, and no pager waits for keys.
        env={**kept, "TERM": "xterm-256color", "CI": "1", "PAGER": "", **environment},
    )  # fmt: skip
    os.close(other)
    said = b""
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(main)
    assert process.wait() == 0, said
    return said.decode("utf-8").replace("\r\n", "\n")


def piped(*words: str, **environment: str) -> str:
    return run_hiwater(*words, environment=environment, check=True).stdout


VIEWS = [
    ("report",), ("report", "--full"), ("report", "--stacks"), ("report", "--by", "function"),
    ("report", "--by", "thread"), ("report", "--format", "tree"), ("report", "--format", "tree", "--inverted"),
    ("report", "--format", "table"), ("report", "--format", "table", "--by", "stack"), ("report", "--format", "lines"),
    ("diff",), ("diff", "--by", "file"),
]  # fmt: skip


END_OF_VIEW = "--- the end of a view\n"
EACH_VIEW = f"""
import json, sys
from hiwater.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
    print({END_OF_VIEW.strip()!r}, flush=True)
"""


@pytest.mark.parametrize("columns", [48, 80, 200])
def test_no_line_is_wider_than_the_terminal(capture: Path, columns: int) -> None:
    """One process shows all views: most of the time of each would be its start."""
    other = capture.parent / "other.hiw"
    recording = Recording()
    recording.allocate(recording.path(("<module>", "work.py", 1)), 10)
    recording.end()
    other.write_bytes(recording.to_bytes())
    commands = [[*words, *([str(other)] if words[0] == "diff" else []), str(capture)] for words in VIEWS]
    out = ESCAPES.sub("", python_on_terminal(columns, "-c", EACH_VIEW, json.dumps(commands)))
    shown = out.split(END_OF_VIEW)[:-1]
    assert len(shown) == len(VIEWS)
    for words, view in zip(VIEWS, shown, strict=True):
        lines = view.splitlines()
        assert len(lines) > 4, words
        assert max(cell_len(line) for line in lines) <= columns, (words, max(lines, key=cell_len))


def test_a_wide_terminal_shows_whole_names(capture: Path) -> None:
    wide, narrow = (ESCAPES.sub("", on_terminal(columns, "report", "--full", str(capture))) for columns in (220, 60))
    folder = "/somewhere/quite/far/away/lib/python3.11/site-packages/a_package/with/folders"
    name = f"LongClassName5.and_method_5 ({folder}/module_of_some_length.py:5)"
    assert name in wide and name not in narrow and "LongClassName5" in narrow
    for figure in ("35.2 KiB", "7.8 KiB", "MainThread", "resident at its peak"):
        assert figure in wide and figure in " ".join(narrow.split())


@pytest.mark.parametrize(
    "words", [("report",), ("report", "--format", "tree"), ("report", "--format", "table"), ("diff",)], ids=" ".join
)
def test_frames_lead_to_files_that_are_there(capture: Path, words: tuple[str, ...]) -> None:
    captures = [str(capture)] * (1 + (words[0] == "diff"))
    if words[0] == "diff":
        recording = Recording()
        recording.end()
        captures[0] = str(capture.parent / "empty.hiw")
        Path(captures[0]).write_bytes(recording.to_bytes())
    targets = set(LINK.findall(on_terminal(100, *words, *captures))) - {""}
    assert targets == {(capture.parent / "work.py").as_uri()}


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TERM": "xterm-256color"}])
def test_nothing_leads_anywhere_when_piped(capture: Path, environment: dict[str, str]) -> None:
    for words in (("report",), ("report", "--format", "tree"), ("report", "--format", "table")):
        assert "\x1b]8" not in piped(*words, str(capture), **environment)


# The pager


def test_what_is_longer_than_the_terminal_goes_to_the_pager(capture: Path) -> None:
    """The pager here marks what goes through it; links, which pagers show as text, do not."""
    pager = "sed s/^/paged:/"
    long, short = ("report", "--full", str(capture)), ("report", str(capture))
    paged = on_terminal(100, *long, PAGER=pager)
    assert all(line.startswith("paged:") for line in paged.splitlines()) and not LINK.search(paged)
    assert "Stacks that held most" in paged and "\x1b[1m" in paged
    for words, chosen in ((short, pager), ((*long, "--no-pager"), pager), (long, ""), (long, "no-such-pager-here")):
        assert "paged:" not in on_terminal(100, *words, PAGER=chosen)
    assert "paged:" not in piped(*long, PAGER=pager)
    assert "paged:" in on_terminal(
        100, "diff", "--by", "line", "--top", "50", *[str(empty(capture)), str(capture)], PAGER=pager
    )


def test_a_pager_that_is_left_early_is_no_fault(capture: Path) -> None:
    assert "hiwater" in on_terminal(100, "report", "--full", "--top", "100", str(capture), PAGER="head -1")


def empty(capture: Path) -> Path:
    recording = Recording()
    recording.end()
    path = capture.parent / "empty.hiw"
    path.write_bytes(recording.to_bytes())
    return path


# Terminals that know ASCII only


@pytest.mark.grid
@pytest.mark.parametrize(
    "words", [(), ("--full",), ("--stacks",), ("--tree",), ("--format", "table"), ("--format", "lines")]
)
def test_text_is_ascii_where_the_locale_is_c(capture: Path, words: tuple[str, ...]) -> None:
    here = {"LC_ALL": "C", "FORCE_COLOR": ""}
    assert piped("report", *words, str(capture), **here).isascii()
    assert not piped("report", *words, str(capture), LC_ALL="C.UTF-8").isascii()
    assert on_terminal(100, "report", *words, str(capture), LC_ALL="C", PAGER="cat").isascii()


def test_a_diff_and_the_last_lines_of_a_run_are_ascii_where_the_locale_is_c(capture: Path, tmp_path: Path) -> None:
    assert piped("diff", str(empty(capture)), str(capture), LC_ALL="C").isascii()
    assert not piped("diff", str(empty(capture)), str(capture), LC_ALL="C.UTF-8").isascii()
    words = ("run", "--sample", "64KiB", "-o", str(tmp_path / "s.hiw"), "-c", "kept = list(map(str, range(10**5)))")
    said = run_hiwater(*words, environment={"LC_ALL": "C"}, check=True).stderr
    assert said.isascii() and "+/- " in said


def test_a_dumb_terminal_gets_no_escapes(capture: Path) -> None:
    assert "\x1b" not in on_terminal(80, "report", str(capture), TERM="dumb")


def test_what_is_piped_does_not_depend_on_the_terminal(capture: Path) -> None:
    assert piped("report", str(capture), COLUMNS="40") == piped("report", str(capture), COLUMNS="300")


def test_a_name_cannot_end_a_link(tmp_path: Path) -> None:
    (tmp_path / "a\x1b\\b c;.py").write_text("")
    stream = io.StringIO()
    page = Page(stream, str(tmp_path))
    page.is_terminal = True
    link = page.style(Frame("f", "a\x1b\\b c;.py", 1)).link
    assert link is not None and link.endswith("/a%1B%5Cb%20c%3B.py")
    assert page.style(Frame("f", "not-there.py", 1)).link is None
    assert page.style(Frame("f", "<string>", 1)).link is None and page.style(Frame("f", "a\0b", 1)).link is None


def test_a_curve_is_as_wide_as_there_is_room() -> None:
    recording = Recording()
    node = recording.path(("f", "/a.py", 1))
    for number in range(100):
        recording.now_ns = number * 10_000_000
        recording.sample(number * 10 if number < 50 else 0)
        recording.now_ns = number * 10_000_000
        if number == 60:
            recording.allocate(node, 245)
    recording.end()
    capture = in_memory(recording)
    for width, columns in ((80, 54), (40, 20), (300, 134)):
        _, allocated, resident = (line.plain for line in over_time(capture, width))
        curve = resident[26:]
        assert len(curve) == len(allocated[26:]) == columns
        assert curve.strip()[-1] == "█" and list(curve[: curve.index("█") + 1]) == sorted(curve[: curve.index("█") + 1])
        assert set(curve[curve.rindex("█") + 1 :]) == {" "} and set(allocated[26:]) <= {" ", "▄", "▃"}
        assert allocated[26:].index("▄") > len(curve) // 2
    assert list(over_time(in_memory(Recording()), 80)) == []
