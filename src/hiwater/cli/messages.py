"""What hiwater says to people, on stderr: data never goes there, and talk never goes to stdout."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def say(text: str) -> None:
    """Write `text` as a line from hiwater.

    Goes to the stream the process started with: a program may have put its own in place of sys.stderr. With that one closed
    there is nobody left to tell, and no reason to fail.
    """
    stream = sys.__stderr__
    if stream is None or stream.closed:
        return
    prefix = "\x1b[1mhiwater:\x1b[0m" if wants_colour(stream) else "hiwater:"
    try:
        stream.write(f"{prefix} {text}\n")
        stream.flush()
    except (OSError, ValueError):  # closed below us, or text its encoding lacks and refuses
        return


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: NO_COLOR and FORCE_COLOR decide, then whether it is a terminal that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()
