"""The line that shows long work, on a real terminal (a pseudo-terminal). What must take long waits until the test
has seen the line."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capture_builder import Recording
from children import hiwater_command
from waiting import PATIENCE_SECONDS

REMOVED = "\x1b[2K"


class Terminal:
    """A process with a terminal: its stderr, and what else is not given."""

    def __init__(self, command: list[str], folder: Path, *, is_ci: bool = False, stdout: int | None = None) -> None:
        self.said = ""
        self._main, other = pty.openpty()
        kept = {name: value for name, value in os.environ.items() if name not in {"CI", "NO_COLOR", "FORCE_COLOR"}}
        environment = {**kept, "TERM": "xterm-256color", **({"CI": "true"} if is_ci else {})}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=other, stdout=stdout or other, stderr=other
        )
        os.close(other)

    def read_until(self, text: str) -> None:
        while text not in self.said:
            assert self._read(), f"{text!r} never came: {self.said!r}"

    def read_rest(self) -> None:
        while self._read():
            pass
        os.close(self._main)

    def answer(self) -> None:
        os.write(self._main, b"\n")

    def _read(self) -> bool:
        try:
            part = os.read(self._main, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.said += part.decode()
        return bool(part)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Too large, as JSON, for the buffer of a pipe."""
    recording = Recording()
    for number in range(2000):
        recording.allocate(
            recording.path(("<module>", "work.py", number), (f"function_{number}", "work.py", number)), 1000
        )
    recording.end()
    path = tmp_path / "run.hiw"
    path.write_bytes(recording.to_bytes())
    return path


def test_a_report_that_takes_long_shows_a_line_and_removes_it(capture: Path) -> None:
    os.mkfifo(capture.parent / "slow")
    words = hiwater_command("report", "run.hiw", "--format", "json", "-o", "slow")
    terminal = Terminal(words, capture.parent)
    with (capture.parent / "slow").open() as slow:  # nobody reads yet: the report waits
        terminal.read_until("making the report (json)")
        written = slow.read()
    terminal.read_rest()
    assert terminal.process.wait(PATIENCE_SECONDS) == 0 and written.endswith("}\n")
    assert REMOVED in terminal.said.rpartition("making the report")[2]
    assert re.search(r"making the report \(json\) \S*0:00:[0-5][1-9]", terminal.said)  # from when it began


WAITS = """
import sys
from hiwater.cli import progress

with progress.shown_until_output("counting sheep", sys.stdout) as output:
    assert output.isatty() and output.encoding == sys.stdout.encoding
    sys.stdin.readline()
    print("one sheep", file=output)
    sys.stdin.readline()
print("done")
"""


def test_the_line_is_removed_before_the_output_begins(tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-c", WAITS], tmp_path)
    terminal.read_until("counting sheep")
    terminal.answer()
    terminal.read_until("one sheep")
    terminal.answer()
    terminal.read_rest()
    assert terminal.process.wait(PATIENCE_SECONDS) == 0
    before, _, after = terminal.said.partition("one sheep")
    assert REMOVED in before.rpartition("counting sheep")[2] and "counting" not in after


IS_SHOWN = "import sys; from hiwater.cli import progress; print(progress.is_shown(), file=open('said', 'w'))"


@pytest.mark.parametrize(("is_ci", "is_shown"), [(False, "True\n"), (True, "False\n")])
def test_a_job_of_a_ci_service_shows_none(tmp_path: Path, is_ci: bool, is_shown: str) -> None:
    terminal = Terminal([sys.executable, "-c", IS_SHOWN], tmp_path, is_ci=is_ci)
    terminal.read_rest()
    assert terminal.process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "said").read_text() == is_shown


def test_stderr_that_is_no_terminal_shows_none(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    subprocess.run([sys.executable, "-c", IS_SHOWN], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, check=True)
    assert (tmp_path / "said").read_text() == "False\n"


def test_quick_work_writes_nothing_and_loads_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from hiwater.cli import progress\nwith progress.shown('x'): pass\nassert 'rich' not in sys.modules"
    )
    terminal = Terminal([sys.executable, "-c", code], tmp_path)
    terminal.read_rest()
    assert (terminal.process.wait(PATIENCE_SECONDS), terminal.said) == (0, "")
