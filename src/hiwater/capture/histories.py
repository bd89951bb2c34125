"""Histories of device memory, as contents of captures: files of other libraries, and what a recording attached to its
capture.

`hiwater.device_history` reads them; it is loaded when there is one, which most captures have none of.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hiwater import _registry
from hiwater._os import destination
from hiwater.allocator_state import AllocatorState
from hiwater.capture import attachments, program
from hiwater.capture.reader import Contents
from hiwater.capture.tables import Tables
from hiwater.errors import BadRequest, CorruptCapture, MissingCapture


def is_history(path: str | os.PathLike[str]) -> bool:
    """Whether the file at `path` begins as a pickle or a gzipped profile does. False for what cannot be read."""
    return destination.is_history(destination.head_of(path))


def read_all(path: str | os.PathLike[str]) -> list[Contents]:
    """The devices of a history. Raises MissingCapture, ForeignFile, TruncatedCapture, CorruptCapture, or
    ExtraMissing where a package is needed."""
    found: list[Contents] = _registry.load(_registry.HISTORY_READER).read_all(path)
    return found


def read_one(path: str | os.PathLike[str]) -> Contents:
    """The only device of a file. Raises BadRequest where there are more, and what `read_all` raises."""
    found = read_all(path)
    if len(found) > 1:
        raise BadRequest(
            f"{os.fspath(path)!r} holds {len(found)} devices", f"give one of them, such as {str(found[0].path)!r}"
        )
    return found[0]


def named(place: Path, found: list[Contents]) -> Contents:
    """The one of these that is called `place`. Raises MissingCapture."""
    for contents in found:
        if contents.path.name == place.name:
            return contents
    names = ", ".join(contents.path.name for contents in found) or "none"
    raise MissingCapture(f"there is no device {place.name!r} in {str(place.parent)!r}", f"it has {names}")


def attached_to(contents: Contents, facts: Mapping[str, str]) -> list[Contents]:
    """The histories that a recording attached to its capture. `facts` are those of the recording that theirs begin
    with."""
    members = attachments.read(contents)
    if not members:
        return []
    found: list[Contents] = _registry.load(_registry.HISTORY_READER).read_attached(contents, members, facts)
    return found


def of_recording(tables: Tables) -> list[Contents]:
    """The histories of devices' memory that the recording attached to its capture."""
    own_facts: dict[str, str] = {name: tables.facts[name] for name in ("host", "cwd", "rank") if name in tables.facts}
    argv = program.arguments(tables.facts.get("argv", "[]"))
    name = tables.facts.get("program") or " ".join(program.name_of(argv)).rsplit("/", 1)[-1]
    return attached_to(tables.contents, {**own_facts, "program": name})


def allocator(tables: Tables) -> AllocatorState | None:
    """What the allocator of the device held at the end; None where that is not known."""
    return AllocatorState.from_json(tables.facts.get("allocator_state", ""))


def oom_report(tables: Tables) -> dict[str, Any] | None:
    """What the program wrote when memory of a device was refused and ended it (`hiwater.contrib.torch.guard`); None
    where it did not."""
    try:
        said = json.loads(attachments.read(tables.contents).get("oom.json", b"null"))
    except (CorruptCapture, ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None
