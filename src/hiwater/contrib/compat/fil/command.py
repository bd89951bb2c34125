"""`fil-profile` and `python -m filprofiler`: hiwater records the program, and writes the reports where Fil writes them.

Exits with the program's own exit code; otherwise as `hiwater run` does.
"""

from __future__ import annotations

import os
import signal
import sys

import hiwater
from hiwater._os import settings
from hiwater.cli import run, run_arguments
from hiwater.contrib.compat.fil import result_folder
from hiwater.recording import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """\
usage: fil-profile [-o DIR] [--no-browser] (run [-m] PROGRAM [arguments …] | python [arguments …])

Runs a program under hiwater, by Fil's name and options, and writes what held memory at the peak into DIR/<time>/.

commands:
  run                  record a script, or with -m a module
  python               the interpreter, not recorded: for programs that call filprofiler.api.profile

options:
  -o DIR               where the reports go (default: fil-result)
  --no-browser         do not open the report in a browser
  --disable-oom-detection
                       accepted; hiwater never ends a program that is short of memory
  --version, --license, -h, --help

SIGUSR2 writes the reports of the peak so far. FIL_NO_REPORT=1 in the environment leaves the reports out.
"""
_NO_REPORT = "FIL_NO_REPORT"


def main(words: Sequence[str]) -> int:
    """Run `fil-profile WORDS`; return the exit code, or raise what makes the interpreter end as the program did."""
    rest, folder, opens_browser = list(words), result_folder.DEFAULT, True
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in {"-h", "--help"}:
            break
        if word == "--version":
            print(hiwater.__version__)
            return 0
        if word == "--license":
            print("hiwater, Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0")
            return 0
        if word == "-o" and rest:
            folder = rest.pop(0)
        elif word.startswith("-o") and len(word) > 2:
            folder = word[2:]
        elif word == "--no-browser":
            opens_browser = False
        elif word != "--disable-oom-detection":
            return _refuse(f"{word} is not an option, or lacks its value")
    else:
        if rest[:1] == ["python"]:
            os.execv(sys.executable, [sys.executable, *rest[1:]])  # noqa: S606 - becoming the interpreter is the command
        if rest[:1] == ["run"]:
            return _run(rest[1:], folder, opens_browser, len(words))
        if rest:
            return _refuse(f"{rest[0]!r} is not a command")
    sys.stdout.write(HELP)
    return 0


def _refuse(problem: str) -> int:
    result_folder.say(f"{problem}; see `fil-profile --help`")
    return 2


def _run(words: list[str], root: str, opens_browser: bool, hiwater_arguments: int) -> int:
    if not words:
        return _refuse("there is no program to run")
    try:
        arguments = run_arguments.parse(["-q", *words], settings.Settings({}, None))
        if arguments.help:
            return _refuse("there is no program to run")
        folder = result_folder.new(root)
    except hiwater.errors.HiwaterError as error:
        return _refuse(str(error))
    capture = result_folder.capture_in(folder)
    arguments.output = capture.replace("%", "%%")
    arguments.children = False  # Fil records one process

    class FilRecording(run.ProgramRecording):
        def start(self) -> None:
            _report_on_signal(capture, root)
            super().start()

        def _tell(self) -> None:
            trouble = recorder.trouble(self._recorder.summary())
            if trouble is not None:
                result_folder.say(trouble)
            if not os.environ.get(_NO_REPORT):
                result_folder.write_reports(capture, folder, opens_browser=opens_browser)

    try:
        return run.run_recorded(arguments, hiwater_arguments, FilRecording)
    finally:
        result_folder.remove_if_empty(folder)


def _report_on_signal(capture: str, root: str) -> None:
    """Write the reports of the peak so far on SIGUSR2, unless the program handles the signal itself."""
    if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, lambda *_: result_folder.write_reports(capture, result_folder.new(root)))
