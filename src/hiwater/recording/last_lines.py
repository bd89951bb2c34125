"""The last lines of `hiwater run` where the process itself cannot write them: they are about a run of several
processes, or a signal ends it.

Another process reads the captures and writes the first lines of their report (`hiwater.cli.last_lines`). The engine
starts it at the end of the process (native/session/last_lines.h). A process that the first one of the run became by an
exec does the same.
"""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater._os import destination, native, unrecorded

_MOST_CAPTURES = 200
_CODE = """\
import sys
sys.path += [path for path in sys.argv[2].split(":") if path not in sys.path]
from hiwater.cli import last_lines
last_lines.main(sys.argv[1], int(sys.argv[3]))
"""


def begin(capture: str) -> None:
    """Have the last lines written if a signal ends this process. `capture` is that of the first process of the run."""
    unrecorded.do(_begin, capture, None)


def _begin(capture: str, _: None) -> None:
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(hiwater.__file__))), *sys.path]
    paths = ":".join(path for path in folders if _is_absolute(path))
    command = [sys.executable, "-I", "-c", _CODE, capture, paths] if _is_absolute(sys.executable) else []
    native.load().set_last_lines(command)


def _is_absolute(path: object) -> bool:
    """Whether it is the name of a file that can be given to a program. `sys.path` may have anything."""
    return isinstance(path, str) and os.path.isabs(path) and path.encode("utf-8", "ignore").decode() == path


def write(capture: str) -> bool:
    """Have them written now, and return whether they were. Of very many processes they are not: to read all captures
    takes longer than a program may wait at its end."""
    if _others(capture) > _MOST_CAPTURES:
        return False
    begin(capture)
    return bool(native.load().write_last_lines())


def are_about_several(capture: str) -> bool:
    """Whether processes beside the first one left something."""
    return _others(capture) > 0


def _others(capture: str) -> int:
    try:
        return len(os.listdir(destination.folder_of_children(capture)))
    except OSError:
        return 0
