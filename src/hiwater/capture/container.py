"""Merged captures: many captures in one file, each as it was, with an index in front.

A merged capture is a zip file, so that any unzip can take it apart. Its first member, stored and not compressed, is the
index:

    hiwater.merged.json   {"format": "hiwater.merged", "version": 1, "captures": [{"name", "sha256", "bytes"}, …],
    "rows": {…}}

The captures follow in the order of the index: by host, time of start, process and content. A capture is in it once,
however often it was given. So a merged capture depends on the set of captures alone: merging is associative and
commutative, to the byte. `rows` is the member with the rows of the runs' indexes (`run_index`), if there are any.
`packing` makes a merged capture.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from hiwater._os.destination import MERGED_INDEX, head_of, is_merged
from hiwater.capture import archives, bounds, histories, run_index
from hiwater.capture.archives import DAMAGE
from hiwater.capture.layout import corrupt, incompatible
from hiwater.capture.reader import Contents, read, read_descriptor
from hiwater.errors import BadRequest, MissingCapture, TruncatedCapture

VERSION = 1
FORMAT = "hiwater.merged"
ROWS = "hiwater.rows.jsonl"
COPIED_AT_ONCE = 1 << 20
LARGEST_CAPTURE_BYTES = 4 << 30  # above what the format's extents can hold
_DEVICE = re.compile(r"[a-z]+:[0-9]+")


@dataclass(frozen=True, slots=True)
class Member:
    """One capture of a merged one: its name there, and what it must come to."""

    name: str
    sha256: str
    bytes: int


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether the file at `path` begins as a merged capture does. False for what cannot be read: opening it says
    why."""
    return is_merged(head_of(path))


def members(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """The index of the merged capture at `path`. Raises TruncatedCapture, IncompatibleCapture or CorruptCapture."""
    with opened(path) as archive:
        return _captures(_index(archive))


def rows(path: str | os.PathLike[str]) -> list[run_index.Row]:
    """The rows of the runs' indexes in the merged capture at `path`. Raises what `members` raises."""
    with opened(path) as archive:
        named = _index(archive).get("rows")
        if named is None:
            return []
        member, content = _member(named), io.BytesIO()
        if member.bytes > bounds.LARGEST_ROWS_BYTES:
            raise corrupt("its rows are more than can be")
        _copy(archive, member, content)
    return run_index.parse(content.getvalue().splitlines())


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """The capture at `path`, which may be one in a merged one: `all.hiw/NAME`; or the only device of another library's
    history, or one that is named: `snapshot.pickle/cuda:0`, `run.hiw/cuda:0`.

    Raises what `reader.read` raises, and BadRequest for a file that holds more than one.
    """
    place = Path(path)
    if histories.is_history(place):
        return histories.read_one(place)
    if histories.is_history(place.parent):
        return histories.named(place, histories.read_all(place.parent))
    if is_container(place):
        held = members(place)
        if len(held) != 1:
            raise BadRequest(
                f"{str(place)!r} holds {len(held)} captures", f"give one of them, such as {str(place / held[0].name)!r}"
            )
        return read_member(place, held[0])
    if is_container(place.parent):
        for member in members(place.parent):
            if member.name == place.name:
                return read_member(place.parent, member)
        raise MissingCapture(
            f"there is no capture {place.name!r} in {str(place.parent)!r}", "see the names in `hiwater report` of it"
        )
    if _DEVICE.fullmatch(place.name) and not os.path.exists(place):
        return histories.named(place, histories.attached_to(read_contents(place.parent), {}))
    return read(place)


def read_member(path: str | os.PathLike[str], member: Member) -> Contents:
    """One capture out of the merged one at `path`."""
    with opened(path) as archive:
        return _read_member(archive, path, member)


def readers(path: str | os.PathLike[str]) -> list[Callable[[], Contents]]:
    """For each capture of the merged one at `path`, in its order, what reads it. Raises what `members` raises."""
    archive = opened(path)  # closed when the last of these functions is gone
    return [partial(_read_member, archive, path, member) for member in _captures(_index(archive))]


def _read_member(archive: zipfile.ZipFile, path: str | os.PathLike[str], member: Member) -> Contents:
    with tempfile.TemporaryFile(prefix="hiwater-") as unpacked:
        _copy(archive, member, unpacked)
        unpacked.flush()
        return read_descriptor(Path(path, member.name), unpacked.fileno())


def opened(path: str | os.PathLike[str]) -> zipfile.ZipFile:
    try:
        return archives.opened(path)
    except FileNotFoundError:
        raise MissingCapture(f"there is no capture {os.fspath(path)!r}", "check the path") from None
    except DAMAGE as error:
        problem = "the merged capture is truncated or damaged: its directory cannot be read"
        raise TruncatedCapture(problem, "copy it again whole, or merge again") from error


def _index(archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        archives.check_member(archive, MERGED_INDEX, 0)
        with archive.open(MERGED_INDEX) as stream:
            said = json.loads(stream.read(bounds.LARGEST_INDEX_BYTES))
    except (*DAMAGE, RecursionError) as error:
        raise corrupt("the index of the merged capture cannot be read") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT or not isinstance(said.get("version"), int):
        raise corrupt("its index is not that of a merged capture")
    if said["version"] != VERSION:
        raise incompatible("the merged capture", said["version"], VERSION)
    return said


def _captures(index: dict[str, Any]) -> tuple[Member, ...]:
    captures = index.get("captures")
    if not isinstance(captures, list) or not captures:
        raise corrupt("its index names no capture")
    found = tuple(_member(entry) for entry in captures)
    if len({member.name for member in found}) != len(found):
        raise corrupt("its index names one capture twice")
    return found


def _member(entry: Any) -> Member:
    if isinstance(entry, dict):
        name, digest, size = (entry.get(key) for key in ("name", "sha256", "bytes"))
        is_name = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_.-]+", name) and name != MERGED_INDEX
        if is_name and isinstance(digest, str) and type(size) is int and 0 <= size <= LARGEST_CAPTURE_BYTES:
            return Member(str(name), digest, size)
    raise corrupt("its index has an entry that names no capture")


def _copy(archive: zipfile.ZipFile, member: Member, into: IO[bytes]) -> None:
    """Unpack one member, no more of it than the index says, and only when it is what was packed."""
    digest, left = hashlib.sha256(), member.bytes
    try:
        archives.check_member(archive, member.name, member.bytes)
        with archive.open(member.name) as stream:
            while left > 0:
                part = stream.read(min(left, COPIED_AT_ONCE))
                if not part:
                    break
                digest.update(part)
                into.write(part)
                left -= len(part)
    except DAMAGE as error:
        raise corrupt(f"{member.name} in the merged capture cannot be unpacked") from error
    if left or digest.hexdigest() != member.sha256:
        raise corrupt(f"{member.name} in the merged capture is not what was merged")
