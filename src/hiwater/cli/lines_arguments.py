"""The arguments of `hiwater lines`."""

from __future__ import annotations

from hiwater._os import destination
from hiwater.cli import run_arguments
from hiwater.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater._os.settings import Settings

HELP = """\
usage: hiwater lines [options] (script.py | folder | archive.pyz | program | - | -m MOD | -c CODE) [arguments …]

Runs the program as `python` would, and measures functions that are marked with @profile line by line. @profile needs no
import. Each line has its calls, kept and allocated bytes, the peak above its start (with temporary allocations), and
the growth of resident memory. The report goes to stderr when the program has ended, also after an exception. The exit
code is the program's own.

`hiwater report CAPTURE --format lines` annotates the program's own files from a capture, with no decorator.

options:
  -f, --function NAME measure this, too: package.module:function, :Class or :Class.method, or a whole package.module
  -a, --all           measure every function of the script, marked or not
  --no-resident       do not measure resident memory: a line event then costs a twentieth; needs the engine
  --format FORMAT     text or json (default: text)
  -o, --output FILE   write the report to this file; without it, text goes to stderr and json to stdout
  -h                  show these options
  --help              show all options

more options:
  --precision N       digits after the point (default: 1)

examples:
  hiwater lines train.py --epochs 3
  hiwater lines -f mypackage.load:read_table -m mypackage
"""
FORMATS = ("text", "json")

WITH_VALUE = {
    "-f": "function",
    "--function": "function",
    "-o": "output",
    "--output": "output",
    "--format": "format",
    "--precision": "precision",
}
FLAGS = {
    "-a": ("all", True),
    "--all": ("all", True),
    "--no-resident": ("resident", False),
    **run_arguments.HELP_FLAGS,
}


class LinesArguments(run_arguments.ProgramArguments):
    """The program and the options."""

    verb, with_value, flags = "lines", WITH_VALUE, FLAGS
    where_others_go = "the program's own options go after its name"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.functions: list[str] = []
        self.output: str | None = None
        self.format = "text"
        self.precision = 1
        self.resident = settings.flag("resident", True)
        self.all = False

    def put(self, name: str, value: object) -> None:
        if name == "function":
            self.functions.append(str(value))
        elif name != "precision":
            super().put(name, value)
        elif isinstance(value, str) and value.isdecimal() and len(value) < 2:
            self.precision = int(value)
        else:
            raise UsageError(f"--precision is {value!r}", "give a number from 0 to 9")


def parse(words: Sequence[str], settings: Settings) -> LinesArguments:
    """Parse the command line `words`. Raises UsageError with a remedy."""
    result = LinesArguments(settings)
    has_program = result.read(words)
    if result.help or result.usual:
        return result
    if not has_program:
        raise UsageError("there is no program to measure", "give a script, -m MOD or -c CODE; `hiwater lines --help`")
    if result.kind == "script" and destination.is_capture(result.program):
        raise UsageError(
            f"{result.program!r} is a capture, not a program", f"`hiwater report {result.program} --format lines`"
        )
    if result.format not in FORMATS:
        raise UsageError(f"unknown format {result.format!r}", f"choose one of {', '.join(FORMATS)}")
    return result
