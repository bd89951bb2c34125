"""Memory that an exception's traceback keeps alive: the local variables of every frame it went through."""

from __future__ import annotations

import sys
import traceback
from itertools import dropwhile

from hiwater.notebook.figures import mib
from hiwater.notebook.inventory import Parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, TracebackType

WORTH_A_WORD = 1 << 20  # bytes


def warning(shell_names: dict[str, object]) -> str | None:
    """One sentence when what `sys.last_traceback` keeps alone is a MiB or more; None otherwise."""
    names = list(_variables(shell_names))
    if not _is_worth_a_word(value for _, value in names):
        return None
    held = Parts()
    largest, where = 0, ""
    known = Parts()  # what the notebook's own variables hold would be there anyway
    known.take(shell_names)
    for name, value in names:
        one = Parts()
        one.take(value)
        alone = {key: size for key, size in one.sizes.items() if key not in known.sizes}
        held.sizes.update(alone)
        if sum(alone.values()) > largest:
            largest, where = sum(alone.values()), name
    if held.total_bytes < WORTH_A_WORD:
        return None
    return (
        f"the traceback of the last exception (sys.last_traceback) keeps about {mib(held.total_bytes)} alive, most in {where}; "
        "`%hiwater forget` lets go of it"
    )


def _variables(shell_names: dict[str, object]) -> Iterator[tuple[str, object]]:
    """The local variables of the traceback's frames, from the cell's on: those before are IPython's."""
    for frame in dropwhile(lambda frame: frame.f_globals is not shell_names, _frames()):
        if frame.f_locals is not frame.f_globals:
            for name, value in frame.f_locals.items():
                yield f"{name} in {frame.f_code.co_name}", value


def _is_worth_a_word(values: Iterable[object]) -> bool:
    """Whether they hold enough, whoever else does: to look at the whole notebook takes long."""
    every = Parts()
    for value in values:
        every.take(value)
    return every.total_bytes >= WORTH_A_WORD


def forget() -> int:
    """Clear the local variables of the frames that the last traceback holds; return how many frames there were.

    The traceback still shows; `%debug` finds nothing in it any more.
    """
    frames = list(_frames())
    for one in _tracebacks():
        traceback.clear_frames(one)
    for frame in frames:
        # Up to Python 3.12 whoever asked for a frame's locals, as IPython's tracebacks do, left a copy in it: asking again empties that.
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
