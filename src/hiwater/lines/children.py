"""Children of a process whose lines are measured: how they know `profile`, and where they leave their figures.

A child keeps its figures in files in a folder of its parent's, which the parent reads at its end. So a child may end in any way: pools end
their workers with a signal. A forked child has the parent's profilers. Another Python process is told by `HIWATER_LINES` in its
environment, which `hiwater.pth` or `hiwater.start` in site-packages reads when the interpreter starts.
"""

from __future__ import annotations

import builtins
import os
import time
from contextlib import suppress

from hiwater._os.own_command import is_own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hiwater.lines.figures import FunctionLines

ENTRY = "HIWATER_LINES"
_UNMEASURED = "unmeasured"
_RESIDENT, _HEAP_ALONE = "resident", "heap"


def make_folder() -> str:
    """Make a folder for the figures of children; "" if there can be none."""
    path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"hiwater-lines-{os.getpid()}-{time.monotonic_ns()}")  # noqa: S108 - 0700
    with suppress(OSError):
        os.mkdir(path, 0o700)
        return path
    return ""


def tell(folder: str, *, resident: bool) -> None:
    """Have the Python processes that this one starts measure their lines, and leave their figures in `folder`."""
    os.environ[ENTRY] = f"{_RESIDENT if resident else _HEAP_ALONE}:{folder}"


def tell_unmeasured() -> None:
    """Have the Python processes that this one starts know `profile`, which then does nothing."""
    os.environ[ENTRY] = _UNMEASURED


def start() -> None:
    """Make `profile` a builtin in this process, as its parent's entry in the environment says."""
    how, _, folder = os.environ.get(ENTRY, "").partition(":")
    if not is_own_command():
        builtins.profile = _unmeasured if how == _UNMEASURED else _Profile(folder, resident=how == _RESIDENT)  # type: ignore[attr-defined]


def _unmeasured(function: Any = None, /, **_: object) -> Any:
    return function if function is not None else _unmeasured_with


def _unmeasured_with(function: Any) -> Any:
    return function


class _Profile:
    """`hiwater.profile`, which is imported when the program uses it."""

    def __init__(self, folder: str, *, resident: bool) -> None:
        self._folder = folder
        self._resident = resident

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from hiwater.lines import decorator

        decorator.session().join(self._folder, resident=self._resident)
        builtins.profile = decorator.profile  # type: ignore[attr-defined]
        return decorator.profile(*arguments, **options)


def new_file(folder: str) -> str:
    """A name for a file of this process's figures."""
    return os.path.join(folder, f"{os.getpid()}-{time.monotonic_ns()}")


def add_figures(functions: list[FunctionLines], folder: str) -> None:
    """Add the figures that children left in `folder` to those of `functions`, and functions that only they know."""
    from hiwater.lines import core

    known = {(function.file, function.name, function.first_line): function for function in functions}
    for name in sorted(os.listdir(folder)) if folder else ():
        with suppress(OSError), open(os.path.join(folder, name), "rb") as file:
            for found in _functions(core.module().lines_functions_in(file.read())):
                key = (found.file, found.name, found.first_line)
                if key not in known and found.lines:
                    known[key] = found.empty()
                    functions.append(known[key])
                if found.lines:
                    known[key].add_child(found)


def _functions(rows: Iterable[tuple[bytes, int, int, int, int, list[Any]]]) -> Iterable[FunctionLines]:
    from hiwater.lines.figures import FunctionLines, LineFigures

    for label, first_line, last_line, calls, resident_first, lines in rows:
        file, _, name = label.partition(b"\0")
        figures = [LineFigures(*row) for row in lines]
        yield FunctionLines(
            os.fsdecode(file), name.decode(errors="surrogatepass"), first_line, last_line, figures, calls, resident_first
        )


def label(file: str, name: str) -> bytes:
    """What a file of figures says of a function."""
    return os.fsencode(file) + b"\0" + name.encode(errors="surrogatepass")
