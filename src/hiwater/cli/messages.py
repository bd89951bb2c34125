"""Messages to people. They go to stderr, and data goes to stdout."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


_LONGEST = 4000  # characters


def say(text: str) -> None:
    """Write `text` as a line from hiwater.

    Parts of the text may come from another user's program (`escaped`). It is written to the stream with which the
    process started: a program may have replaced sys.stderr. If that stream is closed, the message is dropped.
    """
    stream = sys.__stderr__
    if stream is None or stream.closed:
        return
    text = _for(stream, escaped(text))
    try:
        stream.write(f"\x1b[1mhiwater:\x1b[0m {text}\n" if wants_colour(stream) else f"hiwater: {text}\n")
        stream.flush()
    except (OSError, ValueError):  # closed below us, or text its encoding lacks and refuses
        return


def _for(stream: TextIO, text: str) -> str:
    """`text` as `stream` can show it; as it is if the program has broken imports."""
    if text.isascii():
        return text
    try:
        from hiwater._os import ascii_text  # most messages need none of it
    except Exception:  # noqa: BLE001 - whatever the program's own import raises
        return text
    return ascii_text.text_for(stream, text)


def escaped(text: str) -> str:
    """Text for a terminal, in one line: what a terminal would obey, show in another order, or on a line of its own,
    is escaped. Of very long text the beginning and the end, where a message has its remedy."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour output to `stream`: NO_COLOR and FORCE_COLOR decide, then whether it is a terminal with
    colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()
