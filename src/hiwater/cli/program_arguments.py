"""Splits a command line into hiwater's arguments and the program's.

It is parsed by hand, for two reasons. Everything after the script, `-m MOD` or `-c CODE` belongs to the program, also
options with our names, which argparse cannot guarantee. And argparse must not be loaded before the program starts.
"""

from __future__ import annotations

import hiwater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KINDS = {"-m": "module", "-c": "command"}
HELP_FLAGS = {"-h": ("usual", True), "--help": ("help", True)}


class ProgramArguments:
    """A program and the options before it. `kind` is "script", "module" or "command"; `program` is its path, name or
    code."""

    verb = ""
    with_value: Mapping[str, str] = {}
    """For each option the name under which `put()` gets its value."""
    flags: Mapping[str, tuple[str, bool]] = {}
    """The same for options without a value, and what `put()` gets."""
    where_others_go = ""
    """For the error about an unknown option."""

    def __init__(self) -> None:
        self.kind = "script"
        self.program = ""
        self.arguments: list[str] = []
        self.help = False
        self.usual = False

    def put(self, name: str, value: object) -> None:
        """Note an option. Raises UsageError."""
        setattr(self, name, value)

    def help_of(self, text: str) -> str | None:
        """The part of the help text that was requested; None if a program is to be run."""
        return text if self.help else usual_options(text) if self.usual else None

    def read(self, words: Sequence[str]) -> bool:
        """Read the command line. False if help was requested, or there is no program. Raises UsageError."""
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                self._note("script", word, rest)
                break
            if word == "-" or not word.startswith("-"):
                self._note("script", word, [word, *rest])
                break
            if word[:2] in _KINDS:
                attached = [word[2:]] if len(word) > 2 else []
                self._note(_KINDS[word[:2]], word[:2], [*attached, *rest])
                break
            self._take_option(word, rest)
            if self.help or self.usual:
                return False
        return bool(self.program) or self.kind == "command"

    def _note(self, kind: str, option: str, words: list[str]) -> None:
        if not words:
            raise hiwater.errors.UsageError(f"{option} needs something after it", f"see `hiwater {self.verb} --help`")
        self.kind, self.program, *self.arguments = kind, *words

    def _take_option(self, word: str, rest: list[str]) -> None:
        """Note one option of ours, and remove its value from `rest`."""
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in self.with_value:
            if not equals and not rest:
                raise hiwater.errors.UsageError(f"{name} needs a value", f"see `hiwater {self.verb} --help`")
            self.put(self.with_value[name], value if equals else rest.pop(0))
        elif name in self.flags and not equals:
            self.put(*self.flags[name])
        else:
            from hiwater.cli.suggestions import unknown_option

            known = [*self.with_value, *self.flags]
            raise unknown_option(word, known, f"hiwater {self.verb}", self.where_others_go)


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
