"""What messages and reports write in place of hiwater's own signs where the locale or the stream knows ASCII only."""

from __future__ import annotations

import codecs
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

ERRORS = "hiwater.ascii"
"""The name of the error handler for encoding to ASCII: signs of hiwater's get a likeness, all other characters a
backslash escape."""

_LIKENESS = {
    "±": "+/-", "−": "-", "–": "-", "·": "-", "•": "*", "…": "...", "→": "->", "≤": "<=", "×": "x",
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
}  # fmt: skip


def _likeness(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_LIKENESS.get(one) or one.encode("ascii", "backslashreplace").decode() for one in text), error.end


codecs.register_error(ERRORS, _likeness)


def is_wanted() -> bool:
    """Whether the user asked for ASCII: LC_ALL=C. Python itself writes UTF-8 there."""
    chosen = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    return chosen in ("C", "POSIX")


def use(stream: TextIO) -> None:
    """Make a stream write what its encoding lacks by its likeness, and ASCII alone where that is wanted."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="ascii" if is_wanted() else getattr(stream, "encoding", "utf-8"), errors=ERRORS)


def text_for(stream: TextIO, text: str) -> str:
    """`text` as `stream` can show it, for a stream whose settings are the program's and stay as they are."""
    encoding = "ascii" if is_wanted() else stream.encoding or "ascii"
    return text.encode(encoding, ERRORS).decode(encoding)
