"""The arguments of `hiwater lines`: a program to run, or a capture to annotate source from."""

from __future__ import annotations

from hiwater.capture import destination
from hiwater.cli import program_arguments
from hiwater.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater._os.settings import Settings

USAGE = """\
usage: hiwater lines [options] (script.py | folder | archive.pyz | - | -m MOD | -c CODE) [arguments …]
       hiwater lines [options] CAPTURE [FILE …]"""
HELP = f"""\
{USAGE}

Given a program: runs it exactly as python would and measures, line by line, the functions marked with @profile, which works
without an import. Per line: calls, bytes kept, bytes allocated, the peak above the line's start (temporaries inside a line are
seen), growth of resident memory. The report goes to stderr when the program has ended, also by an exception; the exit code is
the program's own.

Given a capture: annotates the program's own files (or these FILEs) from what it holds: per line the bytes at the peak, at the
end, asked for in all, and temporaries.

options:
  -f, --function NAME measure this, too: package.module:function, :Class or :Class.method, or a whole package.module
  -a, --all           every function of the script, marked or not; of a capture: libraries' files, too
  --no-resident       leave resident memory out: a line event then costs a twentieth
  --precision N       digits after the point (default: 1)
  --at MOMENT         of a capture: peak, end, oom, SECONDS or T1:T2 (default: peak)
  --format FORMAT     text or json (default: text)
  -o, --output FILE   write the report to this file
  -h, --help          show this

examples:
  hiwater lines train.py --epochs 3
  hiwater lines -f mypackage.load:read_table -m mypackage
  hiwater run -o run.hiw train.py; hiwater lines run.hiw
"""
FORMATS = ("text", "json")

WITH_VALUE = {
    "-f": "function",
    "--function": "function",
    "-o": "output",
    "--output": "output",
    "--format": "format",
    "--at": "at",
    "--precision": "precision",
}
FLAGS = {
    "-a": ("all", True),
    "--all": ("all", True),
    "--no-resident": ("resident", False),
    "-h": ("help", True),
    "--help": ("help", True),
}


class LinesArguments:
    """The program or capture, and the options."""

    def __init__(self, settings: Settings) -> None:
        self.kind = "script"
        self.program = ""
        self.arguments: list[str] = []  # the program's own; with a capture, files
        self.functions: list[str] = []
        self.is_capture = False
        self.output: str | None = None
        self.format = "text"
        self.at = "peak"
        self.precision = 1
        self.resident = settings.flag("resident", True)
        self.all = False
        self.help = False


def parse(words: Sequence[str], settings: Settings) -> LinesArguments:
    """Parse the command line `words`. Raises UsageError with a remedy."""
    result = LinesArguments(settings)

    def take_option(word: str, rest: list[str]) -> bool:
        _take_option(result, word, rest)
        return not result.help

    result.kind, result.program, result.arguments = program_arguments.split(words, take_option, "lines")
    if result.help:
        return result
    if not result.program and result.kind != "command":
        raise UsageError(
            "there is nothing to show the lines of",
            "name a script, -m MOD, -c CODE or a capture; `hiwater lines --help`",
        )
    result.is_capture = result.kind == "script" and destination.is_capture(result.program)
    if result.is_capture:
        _take_files(result)
    if result.format not in FORMATS:
        raise UsageError(f"unknown format {result.format!r}", f"choose one of {', '.join(FORMATS)}")
    return result


def _take_files(result: LinesArguments) -> None:
    """Take the files after a capture. Options may be between them."""
    rest, files = list(result.arguments), []
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            _take_option(result, word, rest)
        else:
            files.append(word)
    result.arguments = files


def _take_option(result: LinesArguments, word: str, rest: list[str]) -> None:
    def put(name: str, value: object) -> None:
        if name == "function":
            result.functions.append(str(value))
        elif name != "precision":
            setattr(result, name, value)
        elif isinstance(value, str) and value.isdecimal() and len(value) < 2:
            result.precision = int(value)
        else:
            raise UsageError(f"--precision is {value!r}", "give a number from 0 to 9")

    more = "the program's own options go after its name"
    program_arguments.take_option(word, rest, WITH_VALUE, FLAGS, put, "lines", more)
