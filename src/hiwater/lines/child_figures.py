"""The files in which child processes leave the figures of their lines.

A child keeps its figures in files in a folder of its parent's, which the parent reads at its end. So a child may end in
any way: pools end their workers with a signal.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hiwater.lines.figures import FunctionLines


def make_folder() -> str:
    """Make a folder for the figures of children; "" if there can be none."""
    path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"hiwater-lines-{os.getpid()}-{time.monotonic_ns()}")  # noqa: S108 - 0700
    with suppress(OSError):
        os.mkdir(path, 0o700)
        return path
    return ""


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
            os.fsdecode(file),
            name.decode(errors="surrogatepass"),
            first_line,
            last_line,
            figures,
            calls,
            resident_first,
        )


def label(file: str, name: str) -> bytes:
    """What a file of figures says of a function."""
    return os.fsencode(file) + b"\0" + name.encode(errors="surrogatepass")
