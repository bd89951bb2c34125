"""The verbs: their names, their modules, and the parser for those whose words argparse reads."""

from __future__ import annotations

import sys

from hiwater import _registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import ModuleType

VERBS = {
    "run": "run a program and record its memory",
    "report": "show what a capture holds: who held memory at the peak",
    "diff": "show what grew between two captures",
    "merge": "put many captures into one file",
    "sample": "watch any process and what it starts, from outside, over time",
    "plot": "draw the timelines of captures",
    "compat-path": "print the folder of the drop-in modules, such as memory_profiler and pytorch_memlab",
    "lines": "run a program and measure marked functions line by line, or annotate source from a capture",
    "estimate": "estimate what a training or inference step needs on a GPU, without one",
    "courtesy": "borrow the GPU memory of a program that offers it, for a while or for a command",
    "doctor": "say what works here, and why the rest does not",
}
_EPILOG = """\
examples:
  hiwater run train.py --epochs 3        run a script as python would, and record it
  hiwater run -m pytest tests            the same for a module
  hiwater report hiwater-train.4711.hiw  who held memory at the peak
  hiwater diff before.hiw after.hiw      what grew between two captures
  hiwater sample --interval 1ms -- make  watch any program and its children
  hiwater plot hiwater-make.4712.hiw     draw what it used over time
  hiwater lines train.py                 what each line of the functions marked @profile did
  hiwater estimate train.py:build        what a training step will need on a GPU
  hiwater doctor                         what works on this machine

`hiwater VERB --help` has each verb's options.
"""


def main(arguments: Sequence[str]) -> int:
    """Run one of the verbs whose words argparse reads, and return the exit code."""
    from hiwater.cli.messages import say
    from hiwater.errors import HiwaterError

    parser = build_parser(next((word for word in arguments if word in VERBS), None))
    parsed = parser.parse_args(arguments)
    if parsed.verb is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = parsed.run(parsed)
    except HiwaterError as error:
        say(str(error))
        return error.exit_code
    except BrokenPipeError:
        return _end_of_pipe()
    return status


def module_of(verb: str) -> ModuleType:
    """The module of a verb; loaded when it is asked for."""
    module: ModuleType = _registry.load(_registry.VERBS.get(verb) or f"hiwater.cli.{verb}")
    return module


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """Return the parser with `verb` in full and the others by name, so that one module is imported and not all."""
    import argparse

    from hiwater import __version__

    parser = argparse.ArgumentParser(
        prog="hiwater",
        description="How much memory did this really use: when, where and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hiwater {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, description in VERBS.items():
        if name == verb:
            module = module_of(name)
            module.add_parser(subparsers)
            subparsers.choices[name].set_defaults(run=module.run)
        else:
            subparsers.add_parser(name, help=description)
    return parser


def _end_of_pipe() -> int:
    """Whoever read our output has read enough (`… | head`): keep the interpreter's last flush from failing, too."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + 13  # as if by SIGPIPE, which Python ignores
