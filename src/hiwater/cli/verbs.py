"""The verbs: their names, their modules, and the parser for those whose words argparse reads."""

from __future__ import annotations

import os
import sys

from hiwater import _registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from types import ModuleType

GROUPS = {
    "record": {
        "run": "run a program and record its memory",
        "attach": "begin recording a process that runs already",
        "detach": "end what `attach` began",
        "snapshot": "copy the recording of a running program, without stopping it",
        "lines": "run a program and measure marked functions line by line",
    },
    "read": {
        "report": "show what a capture contains: where memory was at the peak",
        "leaks": "find lines whose memory grows from call to call, or from marker to marker, and stays",
        "holders": "show which objects hold memory, what holds them, and who allocated them",
        "symbolize": "make the names of native functions ready to be moved with a capture",
    },
    "compare": {
        "diff": "show what grew between two captures",
        "check": "hold memory against a baseline or a limit, for CI",
        "merge": "put many captures into one file",
    },
    "watch": {
        "live": "show a recording that goes on",
        "sample": "watch any process and what it starts, from outside, over time",
    },
    "plan": {
        "estimate": "estimate what a training or inference step needs on a GPU, without one",
        "doctor": "say what works here, and why the rest does not",
    },
}
VERBS = {verb: words for group in GROUPS.values() for verb, words in group.items()}
HAND_READ = ("run", "lines")  # argparse does not read the words of these
_READERS = ("report", "diff", "merge", "holders", "symbolize")  # these run no code of the user's
_BEFORE_A_COMMAND = ("sample", "check")  # the words after their `--` belong to a command, and must not be parsed
_EPILOG = """\
examples:
  hiwater run train.py --epochs 3        run a script as python would, and record it
  hiwater run -m pytest tests            the same for a module
  hiwater report hiwater-train.4711.hiw  where memory was at the peak
  hiwater diff before.hiw after.hiw      what grew between two captures
  hiwater sample --interval 1ms -- make  watch any program and its children
  hiwater report make.hiw --format png   draw what it used over time
  hiwater lines train.py                 what each line of the functions marked @profile did
  hiwater estimate train.py:build        what a training step will need on a GPU
  hiwater doctor                         what works on this machine

`hiwater VERB -h` shows the usual options of a verb, `hiwater VERB --help` all of them.
"""


def main(arguments: Sequence[str], *, is_private: bool = False) -> int:
    """Run one of the verbs whose words argparse reads, and return the exit code. `is_private`: hiwater itself has
    named the file that it writes."""
    from hiwater.cli import standard_output

    if verb_of(arguments) in _READERS and "numpy" not in sys.modules:
        # They multiply no matrices: the threads of numpy's OpenBLAS would take a fifth of the processor time of a small
        # report to start.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return standard_output.exit_code_of(lambda: _run(arguments, is_private))


def _run(arguments: Sequence[str], is_private: bool) -> int:
    parsed, parser = parse(arguments)
    parsed.is_private = is_private
    if parsed.verb is None:
        parser.print_help(sys.stderr)
        return 2
    status: int = parsed.run(parsed)
    return status


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """The parsed arguments, and the parser. Raises UsageError."""
    from hiwater.cli import suggestions

    verb = verb_of(arguments)
    if arguments[:1] and (arguments[0] in suggestions.PROGRAM_OPTIONS or verb not in (None, *VERBS)):
        raise suggestions.unknown_verb(arguments, VERBS)
    parser = build_parser(verb)
    words, command = _split_command(arguments) if verb in _BEFORE_A_COMMAND else (arguments, [])
    parsed = parser.parse_args(words)
    parsed.command = command
    return parsed, parser


def verb_of(arguments: Sequence[str]) -> str | None:
    """The first word that is not an option."""
    return next((word for word in arguments if not word.startswith("-")), None)


def module_of(verb: str) -> ModuleType:
    module: ModuleType = _registry.load(_registry.VERBS.get(verb) or f"hiwater.cli.{verb}")
    return module


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser with all options of `verb`, and only the names of the others, so that one module is imported.

    The module of a verb has `PARSER`, the keywords of its parser, and the functions `add_arguments(parser)` and
    `run(arguments)`. The command after `--` is none of these arguments.
    """
    import argparse

    from hiwater import __version__
    from hiwater.cli.parsing import Parser

    parser = Parser(
        prog="hiwater",
        usage="hiwater VERB …",
        description="\n".join(_overview()),
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hiwater {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", prog="hiwater", help=argparse.SUPPRESS)
    for name in VERBS:
        if name == verb and name not in HAND_READ:
            module = module_of(name)
            of_verb = subparsers.add_parser(name, **module.PARSER)
            module.add_arguments(of_verb)
            of_verb.put_usual_first()
            of_verb.set_defaults(run=module.run)
        else:
            subparsers.add_parser(name)
    return parser


def _overview() -> Iterator[str]:
    """What `hiwater --help` says of the verbs, by what a person wants."""
    yield "How much memory did this really use: when, where and why."
    for group, verbs in GROUPS.items():
        yield f"\n{group}:"
        yield from (f"  {verb:<10}{words}" for verb, words in verbs.items())


def _split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the arguments from the command after `--`, which may have options of its own; empty without one."""
    arguments = list(words)
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]
