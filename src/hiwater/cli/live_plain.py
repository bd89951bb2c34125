"""The view of `hiwater live` without Textual: the screen is drawn again at each reading and key."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from rich.text import Text

from hiwater._os import ascii_text
from hiwater.cli.live_viewer import ACTIONS
from hiwater.report.live_views import View
from hiwater.report.text.terminal import console

if TYPE_CHECKING:
    from hiwater.cli.live_viewer import Viewer

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen, without a cursor; and back
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


def show(viewer: Viewer) -> int:
    """Draw until the viewer leaves; where keys cannot be read, until no process is recorded any more."""
    ascii_text.use(sys.stdout)
    with _screen() as has_keys:
        due = time.monotonic() + viewer.read()
        while True:
            _draw(viewer)
            is_running = viewer.run.is_running
            if not is_running and not has_keys:
                return 0
            pause = max(0.0, due - time.monotonic())
            key = _key(pause if is_running else None) if has_keys else _sleep(pause)
            if key and not viewer.press(key):
                return 0
            if is_running and time.monotonic() >= due:
                due = time.monotonic() + viewer.read()


def _key(seconds: float | None) -> str:
    """The next key; "" if none comes in time. Where the terminal is gone, it is the key that leaves."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _screen() -> Iterator[bool]:
    """The terminal's other screen; whether keys can be read. The terminal is as before afterwards, whatever ends the
    view."""
    has_keys = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if has_keys else None
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if has_keys:
            tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        yield has_keys
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _draw(viewer: Viewer) -> None:
    width, height = shutil.get_terminal_size()
    head = viewer.figures(width)
    body = viewer.rows(width)[: max(0, height - len(head) - 1)]
    keys = Text(
        " ".join(view[0] for view in View) + " what is shown   " + "   ".join(map(" ".join, ACTIONS.items())), "dim"
    )
    keys.truncate(width)
    empty = [Text()] * max(0, height - len(head) - len(body) - 1)
    out = console(sys.stdout)
    with out.capture() as drawn:
        for line in [*head, *body, *empty, keys]:
            out.print(line, soft_wrap=True, end="\n")
    lines = drawn.get().rstrip("\n").split("\n")
    sys.stdout.write(_HOME + f"{_END_OF_LINE}\r\n".join(lines) + _END_OF_LINE + _REST)
    sys.stdout.flush()
