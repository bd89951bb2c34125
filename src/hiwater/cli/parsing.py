"""The parser of the verbs that argparse reads. For an unknown option it suggests a similar one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from hiwater.cli.suggestions import unknown_option


class Parser(argparse.ArgumentParser):
    """A parser of `hiwater`, or of one of its verbs."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As in argparse, but raises UsageError for an unknown option, before argparse reports a missing argument after it."""
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


def _is_option(word: str) -> bool:
    """Whether argparse treats a word as an option."""
    return len(word) > 1 and word.startswith("-") and " " not in word and not word[1:2].isdigit()
