"""Write the options of each verb into `docs/command-line.md`, between `<!-- options of VERB -->` and `<!-- end -->`.

`--help` is where an option is described. A test compares the page with it. Usage: command_line.py
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from hiwater.cli import lines_arguments, run_arguments, verbs

PAGE = Path(__file__).parent.parent / "docs/command-line.md"
BLOCK = re.compile(r"(?<=<!-- options of )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
HAND_READ = {"run": run_arguments.HELP, "lines": lines_arguments.HELP}
COLUMN = 22  # where texts begin in these


def options_of(verb: str) -> Iterator[tuple[str, str]]:
    """Each option of a verb as it is written, and what it does; the usual ones first."""
    if verb in HAND_READ:
        yield from _of_text(HAND_READ[verb])
        return
    actions = verbs.build_parser(verb)._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    parser = actions[verb]  # type: ignore[index]
    formatter = parser._get_formatter()
    for group in (parser._optionals, parser._more):
        for action in group._group_actions if group else ():
            if "--help" not in action.option_strings and "-h" not in action.option_strings:
                yield _written(action), formatter._expand_help(action)


def _written(action: argparse.Action) -> str:
    choices = ",".join(map(str, action.choices or ()))
    value = action.metavar or (f"{{{choices}}}" if choices else action.dest.upper())
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def _of_text(text: str) -> Iterator[tuple[str, str]]:
    """The options of a help text that is written by hand."""
    for part in re.findall(r"^(?:more )?options:\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL):
        for option in re.split(r"\n(?=  -)", part):
            first, *rest = option.split("\n")
            if not re.match(r"  (-h|--help)\b", first):
                yield first[:COLUMN].strip(), " ".join(line.strip() for line in (first[COLUMN:], *rest)).strip()


def table_of(verb: str) -> str:
    rows = [f"| `{_cell(option)}` | {_prose(text)} |\n" for option, text in options_of(verb)]
    return "".join(["\n| option | meaning |\n|---|---|\n", *rows, "\n"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """Markdown of a text that has code in backticks, and no other markup."""
    parts = text.split("`")
    plain = [re.sub(r"([*_\\])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    parts[::2] = plain
    return _cell("`".join(parts))


def page(text: str) -> str:
    """The text of the page with the options that the verbs have now."""
    return BLOCK.sub(lambda block: f"{block[1]}{block[2]}{table_of(block[1])}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
