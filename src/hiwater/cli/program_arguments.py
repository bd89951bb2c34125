"""Splits a command line into hiwater's arguments and the program's.

It is parsed by hand, for two reasons. Everything after the script, `-m MOD` or `-c CODE` belongs to the program, also
options with our names, which argparse cannot guarantee. And argparse must not be loaded before the program starts.
"""

from __future__ import annotations

import hiwater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_KINDS = {"-m": "module", "-c": "command"}


def split(words: Sequence[str], take_option: Callable[[str, list[str]], bool], verb: str) -> tuple[str, str, list[str]]:
    """Return the kind of program ("script", "module" or "command"), its path, name or code ("" for none), and its
    arguments.

    `take_option(word, rest)` handles one option of ours, and removes its value from `rest`. It returns False if no
    program is needed. Raises UsageError.
    """
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return _program("script", word, rest, verb)
        if word == "-" or not word.startswith("-"):
            return "script", word, rest
        if word[:2] in _KINDS:
            attached = [word[2:]] if len(word) > 2 else []
            return _program(_KINDS[word[:2]], word[:2], [*attached, *rest], verb)
        if not take_option(word, rest):
            break
    return "script", "", []


def take_option(
    word: str,
    rest: list[str],
    with_value: Mapping[str, str],
    flags: Mapping[str, tuple[str, bool]],
    put: Callable[[str, object], None],
    verb: str,
    more: str,
) -> None:
    """Handle one option of ours with `put(name, value)`, and remove its value from `rest`. The error for an unknown
    option contains `more`.

    Raises UsageError.
    """
    name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
    if name in with_value:
        if not equals and not rest:
            raise hiwater.errors.UsageError(f"{name} needs a value", f"see `hiwater {verb} --help`")
        put(with_value[name], value if equals else rest.pop(0))
    elif name in flags and not equals:
        put(*flags[name])
    else:
        from hiwater.cli.suggestions import unknown_option

        raise unknown_option(word, [*with_value, *flags], f"hiwater {verb}", more)


def usual_options(text: str) -> str:
    """A help text without what stands under "more options"."""
    before, heading, rest = text.partition("more options:\n")
    more, _, after = rest.partition("\n\n")
    count = sum(line.startswith("  -") for line in more.splitlines())
    return f"{before}{heading}  --help shows {count} more\n\n{after}"


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the arguments from the command after `--`, which may have options of its own; empty without one."""
    arguments = list(words)
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _program(kind: str, option: str, words: list[str], verb: str) -> tuple[str, str, list[str]]:
    if not words:
        raise hiwater.errors.UsageError(f"{option} needs something after it", f"see `hiwater {verb} --help`")
    return kind, words[0], words[1:]
