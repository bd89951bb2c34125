"""Consoles for views: colour only where it is wanted, widths that do not depend on who reads."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console
from rich.text import Text

_WIDTH_OF_A_FILE = 120


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


def title(text: str, remark: str = "") -> Text:
    """The head of a section."""
    return Text.assemble("\n", (text, "bold"), ("  " + remark if remark else "", "dim"))
