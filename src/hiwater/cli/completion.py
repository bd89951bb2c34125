"""Completion in shells: argcomplete answers them from the parsers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any

from hiwater.cli import verbs

_CAPTURES = ("captures", "before", "after")
_CAPTURE_SUFFIXES = ("hiw", "pickle", "pb.gz", "dat")


def answer() -> int:
    """Write the completions, and exit. Returns 1 if argcomplete is not installed."""
    try:
        import argcomplete
    except ImportError:
        return 1
    line = os.environ.get("COMP_LINE", "")
    argcomplete.autocomplete(whole_parser(verbs.verb_of(line.split()[1:])), always_complete_options=False)
    return 1


def whole_parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser with all that may follow `verb`, which need not be one, and with what its words complete to."""
    parser = verbs.build_parser(verb)
    if verb not in verbs.VERBS:
        return parser
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    of_verb: argparse.ArgumentParser = subparsers.choices[verb]
    if verb == "run":
        from hiwater.cli import run_arguments as run

        _add_hand_read(of_verb, run.WITH_VALUE, run.FLAGS, (*run.SHOWN_FORMATS, *run.FILE_SUFFIXES))
    elif verb == "lines":
        from hiwater.cli import lines_arguments as lines

        _add_hand_read(of_verb, lines.WITH_VALUE, lines.FLAGS, lines.FORMATS)
    else:
        _complete(of_verb, getattr(verbs.module_of(verb), "FORMATS", ()))
    return parser


def _add_hand_read(
    parser: argparse.ArgumentParser, with_value: Iterable[str], flags: Mapping[str, Any], formats: Iterable[str]
) -> None:
    """Tell argparse of a verb that it does not read: our options, then a program and what belongs to that."""
    for name in with_value:
        parser.add_argument(name, choices=formats if name == "--format" else None)
    for name in {*flags} - {"-h", "--help"}:
        parser.add_argument(name, action="store_true")
    for name in ("-m", "-c"):
        parser.add_argument(name)
    parser.add_argument("program", nargs=argparse.REMAINDER)


def _complete(parser: argparse.ArgumentParser, formats: Iterable[str]) -> None:
    """Say what the values complete to, where argparse does not know."""
    from argcomplete.completers import ChoicesCompleter, FilesCompleter

    for action in parser._actions:
        completer: Any = None
        if action.dest == "format" and formats:
            completer = ChoicesCompleter(dict.fromkeys(formats, ""))
        elif action.dest == "at":
            completer = ChoicesCompleter(dict.fromkeys(("peak", "end", "oom"), ""))
        elif action.dest in _CAPTURES:
            completer = FilesCompleter(_CAPTURE_SUFFIXES)
        elif action.dest == "baseline":
            completer = FilesCompleter((*_CAPTURE_SUFFIXES, "json"))
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined] # argcomplete's way
