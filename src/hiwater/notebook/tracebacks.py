"""The memory that a traceback keeps alive: the local variables of all its frames."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from types import FrameType, TracebackType

from hiwater.notebook.figures import mib
from hiwater.notebook.inventory import Inventory, attempt

WORTH_A_WORD = 1 << 20  # bytes
_MOST_PARTS = 200_000  # this is done after every cell that fails


def warning(shell_names: dict[str, object]) -> str | None:
    """A sentence if only `sys.last_traceback` keeps a MiB or more alive; None otherwise."""
    names = list(_variables(shell_names))
    total = attempt(lambda inventory: sum(inventory.count(name, value).total for name, value in names), _MOST_PARTS)
    if total < WORTH_A_WORD:  # also what others hold: a search of the whole notebook takes long
        return None

    def work(inventory: Inventory) -> list[tuple[float, str]]:
        inventory.count("", shell_names)  # without what the notebook's own variables hold
        return [(inventory.count(name, value).own, name) for name, value in names]

    alone = attempt(work, _MOST_PARTS)
    held = sum(own for own, _ in alone)
    if held < WORTH_A_WORD:
        return None
    return (
        f"the traceback of the last exception (sys.last_traceback) keeps about {mib(round(held))} alive, most in"
        f" {max(alone)[1]}; `%hiwater forget` lets go of it"
    )


def _variables(shell_names: dict[str, object]) -> Iterator[tuple[str, object]]:
    """The local variables of the traceback's frames, from the cell's frame on. Those before are IPython's."""
    for frame in dropwhile(lambda frame: frame.f_globals is not shell_names, _frames()):
        if frame.f_locals is not frame.f_globals:
            for name, value in frame.f_locals.items():
                yield f"{name} in {frame.f_code.co_name}", value


def forget() -> int:
    """Clear the local variables of the frames of the last traceback, and return the number of frames.

    The traceback can still be shown, but `%debug` finds no variables in it.
    """
    frames = list(_frames())
    for one in _tracebacks():
        traceback.clear_frames(one)
    for frame in frames:
        # Up to Python 3.12, reading a frame's locals, as IPython's tracebacks do, leaves a copy in the frame. The next
        # reading empties it.
        frame.f_locals  # noqa: B018
    return len(frames)


def _tracebacks() -> Iterator[TracebackType]:
    last = getattr(sys, "last_exc", None)  # from Python 3.12 on
    found = getattr(last, "__traceback__", None) or getattr(sys, "last_traceback", None)
    error = last or getattr(sys, "last_value", None)
    seen = set()
    while found is not None or error is not None:
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
        error = (error.__cause__ or error.__context__) if error is not None else None
        if error is None or id(error) in seen:
            return
        seen.add(id(error))
        found = error.__traceback__


def _frames() -> Iterator[FrameType]:
    for one in _tracebacks():
        for frame, _ in traceback.walk_tb(one):
            yield frame
