"""Shows long text on a terminal in the user's pager, as git does."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from hiwater._os import ascii_text

_LINK = re.compile(r"\x1b\]8;[^\x1b]*\x1b\\")  # pagers show these as text
_LESS = "FRX"  # leave at once if it all fits, pass colours on, leave the text on the screen


class _Screen(io.StringIO):
    """Text for the terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def paged() -> Iterator[TextIO]:
    """A stream for text. At the end the text is shown on the terminal, in PAGER if it is longer than the screen."""
    screen = _Screen()
    yield screen
    text, command = screen.getvalue(), _command()
    if command and text.count("\n") >= shutil.get_terminal_size().lines:
        with suppress(OSError):  # the pager cannot be started
            _show(command, _LINK.sub("", text))
            return
    ascii_text.use(sys.stdout)
    sys.stdout.write(text)
    sys.stdout.flush()


def _command() -> list[str]:
    """The command of the pager; empty if there is none, or if the terminal cannot move its cursor."""
    try:
        command = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return []
    return command if command and shutil.which(command[0]) and os.environ.get("TERM") != "dumb" else []


def _show(command: list[str], text: str) -> None:
    pager = subprocess.Popen(command, stdin=subprocess.PIPE, env={"LESS": _LESS, **os.environ})
    assert pager.stdin is not None, "it is a pipe"
    with suppress(BrokenPipeError), pager.stdin:  # the reader has closed the pager
        pager.stdin.write(ascii_text.text_for(sys.stdout, text).encode(sys.stdout.encoding))
    while True:
        with suppress(KeyboardInterrupt):  # is for the pager, which has the terminal
            pager.wait()
            return
