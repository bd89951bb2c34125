"""What the documents for machines have in common: their text, and the types of what is in several of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, TypedDict, TypeVar, cast

from hiwater.capture import Frame
from hiwater.capture.document_types import Keywords
from hiwater.capture.format import COUNTED_KINDS

_Data = TypeVar("_Data")
Mode = Annotated[str, Keywords(enum=["exact", "sampled", "timeline", "history"])]
Ended = Annotated[str, Keywords(enum=["exit", "killed", "recording"])]
Moment = Annotated[str, Keywords(enum=["peak", "end", "slice", "oom"])]
CountedKind = Annotated[str, Keywords(enum=COUNTED_KINDS)]
KindAsked = Annotated[str, Keywords(enum=["all", *COUNTED_KINDS])]


class FrameData(TypedDict):
    """A function at a line."""

    function: str
    file: str
    """empty for what is not Python code"""
    line: int
    """0 for what is not Python code"""


def frame_data(frame: Frame | None) -> FrameData:
    """A frame as data, or the place of what is at no line."""
    if frame is None:
        return {"function": "", "file": "", "line": 0}
    return {"function": frame.function, "file": frame.file, "line": frame.line}


def data_of(kind: type[_Data], result: object, /, **others: object) -> _Data:
    """A result as an object of this TypedDict: the members that `others` gives, and each of the other ones from the
    attribute of its name."""
    names = (name for name in kind.__annotations__ if name not in others)
    return cast("_Data", {name: getattr(result, name) for name in names} | others)


def text_of(document: Any, indent: int | None = 1, separators: tuple[str, str] | None = None) -> str:
    """A document as JSON. It may contain results, which are dataclasses."""
    return json.dumps(document, indent=indent, separators=separators, default=asdict)
