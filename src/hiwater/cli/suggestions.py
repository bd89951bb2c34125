"""Suggestions for a command line with a mistake."""

from __future__ import annotations

import shlex

from hiwater.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PROGRAM_SUFFIXES = (".py", ".pyz")
PROGRAM_OPTIONS = ("-m", "-c")


def unknown_verb(words: Sequence[str], verbs: Iterable[str]) -> UsageError:
    """The error for a command line whose first word is no verb: a program to run, a capture to report, or a misspelt
    verb."""
    word = words[0]
    if word in PROGRAM_OPTIONS or word.endswith(_PROGRAM_SUFFIXES):
        return UsageError(f"{word!r} is not a verb", f"to record a program: `{shlex.join(['hiwater', 'run', *words])}`")
    from hiwater._os import destination

    if destination.is_capture(word):
        return UsageError(
            f"{word!r} is not a verb", f"to read a capture: `{shlex.join(['hiwater', 'report', *words])}`"
        )
    similar = _most_similar(word, verbs)
    remedy = f"did you mean `hiwater {similar}`?" if similar else "`hiwater --help` lists the verbs"
    return UsageError(f"there is no verb {word!r}", remedy)


def unknown_option(word: str, known: Iterable[str], command: str, more: str = "") -> UsageError:
    """The error for an option that `command` ("hiwater report") does not have. `more` is added to it."""
    similar = _most_similar(word.partition("=")[0], known)
    meant = f"did you mean {similar}? " if similar else ""
    return UsageError(f"unknown option {word!r}", f"{meant}see `{command} --help`{more and ': '}{more}")


def _most_similar(word: str, known: Iterable[str]) -> str | None:
    import difflib  # imported only after an error

    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)
