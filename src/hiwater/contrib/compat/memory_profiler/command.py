"""`python -m memory_profiler`: runs a program, and measures its `@profile`d functions line by line or over time."""

from __future__ import annotations

import argparse
import builtins
import os
import shutil
import sys

from hiwater import __version__
from hiwater.cli.messages import say
from hiwater.contrib.compat.memory_profiler import session
from hiwater.contrib.compat.memory_profiler.profiler import CompatLineProfiler, show_results
from hiwater.contrib.compat.memory_profiler.timestamps import TimeStamper
from hiwater.errors import HiwaterError
from hiwater.lines import children
from hiwater.recording import launcher, target
from hiwater.sampling import backends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Run the program as `python` would, print the report in any case, and end as the program did."""
    parsed, program_words = _parse(words)
    try:
        program = _program(parsed, program_words)
        backend = backends.choose_backend(parsed.backend)
    except HiwaterError as error:
        say(str(error))
        return error.exit_code
    except SyntaxError as error:
        error.__traceback__ = None
        return launcher.conclude(error)
    profiler: TimeStamper | CompatLineProfiler
    if parsed.timestamp:
        profiler = TimeStamper(backend, include_children=parsed.include_children)
    else:
        profiler = CompatLineProfiler(max_mem=parsed.max_mem, backend=backend, include_children=parsed.include_children)
    session.profiler = profiler
    children.tell_unmeasured()
    builtins.profile = profiler  # type: ignore[attr-defined]  # where memory_profiler's users look for it
    folder = os.getcwd()
    main_module = launcher.prepare(program, len(sys.argv) - 1)
    ending = launcher.launch(program, main_module)
    try:
        _report(profiler, os.path.join(folder, parsed.out_filename) if parsed.out_filename else None, parsed.precision)
    except OSError as error:
        say(f"the report cannot be written ({error.strerror})")
    return launcher.conclude(ending)


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m memory_profiler", usage="%(prog)s [options] (script.py | module | -c CODE) [arguments …]"
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--pdb-mmem", dest="max_mem", metavar="MAXMEM", type=float, help="MiB at which to enter pdb")
    parser.add_argument("--precision", type=int, default=3, help="decimals in the report")
    parser.add_argument("-o", dest="out_filename", metavar="OUT", help="append the report to this file")
    parser.add_argument("--timestamp", action="store_true", help="note when functions ran instead")
    parser.add_argument("--include-children", action="store_true", help="add child processes")
    parser.add_argument("--backend", choices=backends.NAMES[:-1], default=backends.DEFAULT)
    parser.add_argument("-c", dest="code", metavar="CODE", help="run this piece of code")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script or a module, and its arguments")
    parsed = parser.parse_args(list(words))
    rest = parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program
    if not rest and parsed.code is None:
        parser.error("a program to run must be given")
    return parsed, rest


def _program(parsed: argparse.Namespace, words: list[str]) -> target.Target:
    """The program: code, a script here or on PATH, or else a module. Raises HiwaterError or SyntaxError."""
    if parsed.code is not None:
        return target.command(parsed.code, words)
    name, *arguments = words
    if name == "-m" and arguments:
        return target.module(arguments[0], arguments[1:])
    if name.endswith(".py"):
        found = name if os.path.exists(name) else shutil.which(name, mode=os.R_OK) or name
        session.given_path = (os.path.join(os.getcwd(), found), found)  # joined as target.script does
        return target.script(found, arguments)
    return target.module(name, arguments)


def _report(profiler: TimeStamper | CompatLineProfiler, path: str | None, precision: int) -> None:
    stream = sys.stdout if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed below
    try:
        if isinstance(profiler, TimeStamper):
            profiler.show_results(stream)
        else:
            show_results(profiler, stream, precision)
    finally:
        if path is not None:
            stream.close()
        else:
            stream.flush()
