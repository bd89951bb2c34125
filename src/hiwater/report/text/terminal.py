"""Consoles for views: colour and links only where they are wanted, as wide as the terminal; in files and pipes
always alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.style import Style
from rich.text import Text

from hiwater.capture import Frame
from hiwater.report.formatting import printable
from hiwater.report.request import Report

_WIDTH_OF_A_FILE = 120
_NARROWEST = 40  # a terminal that says less is taken for this wide
_SMALLEST_ROOM = 24  # columns for a name


class _Console(Console):
    """Leaves a reader that stops to the caller; rich's own would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that rich is handling when it calls this  # noqa: PLE0704


def console(stream: TextIO) -> Console:
    """A console on `stream`. Colour on a terminal or with FORCE_COLOR, never with NO_COLOR; names are never markup."""
    force = bool(os.environ.get("FORCE_COLOR"))
    is_terminal = stream.isatty() or force
    return _Console(
        file=stream,
        force_terminal=is_terminal,
        no_color=bool(os.environ.get("NO_COLOR")),
        width=None if stream.isatty() else _WIDTH_OF_A_FILE,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )


def own_code(report: Report) -> Iterator[Text]:
    """What counts as the user's own code, in one row."""
    if report.own_code_words:
        yield Text(report.own_code_words, "dim")


def program(report: Report, page: Page) -> Text:
    """The first line of a report: what it is about."""
    return Text.assemble(("hiwater", "bold cyan"), "  ", (printable(report.title, page.room(9)), "bold"))


def title(text: str, remark: str = "") -> Text:
    """The head of a section."""
    return Text.assemble("\n", (text, "bold"), ("  " + remark if remark else "", "dim"))


class Page:
    """Where a view for people writes. On a terminal, lines are fitted to its width and frames lead to their files;
    elsewhere names are shortened as for 120 columns, lines are as long as they are, and nothing leads anywhere."""

    def __init__(self, stream: TextIO, folder: str = "") -> None:
        """`folder` is what relative paths of the recorded program start at."""
        self.console = console(stream)
        self.width = max(_NARROWEST, self.console.width)
        self.is_terminal = stream.isatty()
        self.folder = folder

    def show(self, line: Text) -> None:
        """Write a line. On a terminal, one that is too long goes on below, indented a little more than it began."""
        if not self.is_terminal:
            self.console.print(line, soft_wrap=True)
            return
        for part in line.split("\n", allow_blank=True):
            self._show_fitted(part)

    def _show_fitted(self, line: Text) -> None:
        if line.cell_len <= self.width:
            self.console.print(line, soft_wrap=True)
            return
        indent = len(line.plain) - len(line.plain.lstrip(" "))
        hang = min(indent + 2, self.width // 2)
        parts = line.wrap(self.console, self.width - hang, overflow="fold")  # retired word: rich's name
        for number, part in enumerate(parts):
            part.rstrip()
            self.console.print(Text.assemble(" " * hang, part) if number else part, soft_wrap=True)

    def room(self, used: int) -> int:
        """How long a name may be in a line that needs `used` columns beside it."""
        return max(_SMALLEST_ROOM, self.width - used)

    def style(self, frame: Frame, *, bold: bool = False) -> Style:
        """How a frame is written: on a terminal as a link (OSC 8) to its file, where that is on this machine."""
        link = _address(self.folder, frame.file) if self.is_terminal else None
        return Style(link=link, bold=bold or None)


@cache
def _address(folder: str, file: str) -> str | None:
    """The URL of a source file; None where there is none. What is in a name is quoted: it cannot end the link."""
    if not file or file.startswith("<"):
        return None
    path = os.path.join(folder, file)
    return Path(path).as_uri() if os.path.isabs(path) and os.path.isfile(path) else None
