"""Has captures show native frames, for every view that can: with their names, and with what has none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hiwater.analysis.symbols import names_file
from hiwater.analysis.symbols.files import Fetch, fetch_nothing
from hiwater.analysis.symbols.naming import FunctionNames, GeneratedCode
from hiwater.capture import Capture
from hiwater.capture.native_frames import Frames
from hiwater.errors import BadRequest


def show(captures: Sequence[Capture], frames: Frames, *, is_page: bool = False) -> list[str]:
    """Have these captures show such frames, and return what is to be said of their names. The page has a switch of its
    own: it gets all that were recorded. Raises BadRequest if native frames are asked for and none were recorded."""
    if frames is Frames.python and not (is_page and _recorded(captures)):
        return []
    return named(captures, Frames.mixed if is_page else frames).remarks()


def compare(sides: Sequence[Sequence[Capture]], frames: Frames, *, is_page: bool = False) -> list[str]:
    """The same of captures that are compared: with native frames on one side alone, all stacks would differ. Raises
    BadRequest if these are asked for."""
    lacking = [side for side in sides if not _recorded(side)]
    if lacking and frames is not Frames.python:
        raise BadRequest(
            f"no native frames were recorded in {str(lacking[0][0].path)!r}", "record both with `hiwater run --native`"
        )
    return [] if lacking else show([capture for side in sides for capture in side], frames, is_page=is_page)


def named(captures: Sequence[Capture], frames: Frames = Frames.mixed, fetch: Fetch | None = None) -> FunctionNames:
    """Have these captures show such frames, and return their names. `fetch` gets debug information that is not here.
    Raises BadRequest if there are none."""
    recorded = _recorded(captures)
    if not recorded:
        raise BadRequest("no native frames were recorded", "record them with `hiwater run --native`")
    moved = names_file.with_captures(capture.path for capture in recorded)
    names = FunctionNames(moved=moved, fetch=fetch or fetch_nothing)
    for capture in recorded:
        generated = partial(GeneratedCode.of, capture.tables.contents)
        capture.show_frames(frames, partial(names.of, generated=generated))
    return names


def _recorded(captures: Sequence[Capture]) -> list[Capture]:
    return [capture for capture in captures if capture.tables.has_native_frames]
