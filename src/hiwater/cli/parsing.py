"""The parser of the verbs that argparse reads. For an unknown option it suggests a similar one, and its help has the
usual options first."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from hiwater.cli.messages import escaped
from hiwater.cli.suggestions import unknown_option


class Parser(argparse.ArgumentParser):
    """A parser of `hiwater`, or of one of its verbs. With `usual`, `-h` shows these options and `--help` all of
    them."""

    def __init__(self, *, usual: Sequence[str] = (), **keywords: Any) -> None:
        super().__init__(add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter, **keywords)
        self._usual = usual
        self._more: argparse._ArgumentGroup | None = None
        unset = argparse.SUPPRESS
        if usual:
            self.option("-h", "show the usual options", action=_BriefHelp, nargs=0, dest=unset, default=unset)
            self.option("--help", "show all options", action="help")
        else:
            self.option("-h, --help", "show this", action="help")

    def option(self, said: str, words: str, **keywords: Any) -> None:
        """Add an option as its help shows it: "-o, --output FILE", or "--full", which takes no value unless `keywords`
        say so."""
        *names, last = said.replace(", ", " ").split(" ")
        if last.startswith("-"):
            names.append(last)
            if not {"action", "choices"} & keywords.keys():
                keywords["action"] = "store_true"
        else:
            keywords["metavar"] = last
        self.add_argument(*names, help=words, **keywords)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what to do, as every message does: the words may come from another program."""
        self.exit(2, f"hiwater: {escaped(message)}; `{self.prog} -h` shows what to give\n")

    def put_usual_first(self) -> None:
        """Move the other options into a part of their own, once all are added."""
        if not self._usual:
            return
        actions = self._optionals._group_actions
        first = [self._option_string_actions[name] for name in (*self._usual, "-h", "--help")]
        self._more = self.add_argument_group("more options")
        self._more._group_actions += [action for action in actions if action not in first]
        actions[:] = first

    def print_usual(self) -> None:
        """Print the help without the options that are not usual."""
        assert self._more is not None
        more, self._more._group_actions = self._more._group_actions, []
        self._more.description = f"`{self.prog} --help` shows {len(more)} more"
        self.print_help()
        self._more._group_actions, self._more.description = more, None

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As in argparse, but raises UsageError for an unknown option, before argparse reports a missing argument
        after it."""
        words = list(args or ())  # `verbs` always gives them
        self._refuse_unknown_options(words)
        return super().parse_known_args(words, namespace)

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        is_ours = _is_option if self._subparsers is not None else lambda word: word != "--"
        own = takewhile(is_ours, words)
        known = self._option_string_actions
        for word in filter(_is_option, own):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if not any(option == name or (name.startswith("--") and option.startswith(name)) for option in known):
                raise unknown_option(word, known, self.prog)


class _BriefHelp(argparse.Action):
    """`-h` where there are more than the usual options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser.print_usual()
        parser.exit()


def _is_option(word: str) -> bool:
    """Whether argparse treats a word as an option."""
    return len(word) > 1 and word.startswith("-") and " " not in word and not word[1:2].isdigit()
