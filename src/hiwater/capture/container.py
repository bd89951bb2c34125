"""Merged captures: many captures in one file, each as it was, with an index in front.

A merged capture is a zip file, so that any unzip can take it apart. Its first member, stored and not compressed, is the index:

    hiwater.merged.json   {"format": "hiwater.merged", "version": 1, "captures": [{"name", "sha256", "bytes"}, …]}

The captures follow in the order of the index: by host, time of start, process and content. A capture is in it once, however often it
was given. So a merged capture depends on the set of captures alone: merging is associative and commutative, to the byte.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hiwater.capture import histories
from hiwater.capture.assemble import assemble
from hiwater.capture.destination import MERGED_INDEX, is_merged
from hiwater.capture.layout import corrupt
from hiwater.capture.process import is_being_written
from hiwater.capture.reader import Contents, read, read_descriptor
from hiwater.capture.tables import Tables
from hiwater.errors import BadRequest, MissingCapture, NewerCapture, OutputFailed, TruncatedCapture

VERSION = 1
_FORMAT = "hiwater.merged"
_COPIED_AT_ONCE = 1 << 20
_LARGEST_INDEX_BYTES = 64 << 20
_LARGEST_CAPTURE_BYTES = 4 << 30  # above what the format's extents can hold
_DEVICE = re.compile(r"[a-z]+:[0-9]+")
# What zipfile and zlib raise for files that were damaged, beside OSError for places that are none.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError, struct.error,
    OverflowError, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """One capture of a merged one: its name there, and what it must come to."""

    name: str
    sha256: str
    bytes: int


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether the file at `path` begins as a merged capture does. False for what cannot be read: opening it says why."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return False
    try:
        return is_merged(os.pread(descriptor, 64, 0))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def members(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """The index of the merged capture at `path`. Raises TruncatedCapture, NewerCapture or CorruptCapture."""
    with _opened(path) as archive:
        return _index(archive)


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """The capture at `path`, which may be one in a merged one: `all.hiw/NAME`; or the only device of another library's history, or
    one that is named: `snapshot.pickle/cuda:0`, `run.hiw/cuda:0`.

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
                f"{str(place)!r} holds {len(held)} captures", f"name one of them, as in {str(place / held[0].name)!r}"
            )
        return read_member(place, held[0])
    if is_container(place.parent):
        for member in members(place.parent):
            if member.name == place.name:
                return read_member(place.parent, member)
        raise MissingCapture(
            f"there is no capture {place.name!r} in {str(place.parent)!r}", "see the names in `hiwater report` of it"
        )
    if _DEVICE.fullmatch(place.name) and not place.exists():
        return histories.named(place, histories.attached_to(read_contents(place.parent), {}))
    return read(place)


def read_member(path: str | os.PathLike[str], member: Member) -> Contents:
    """One capture out of the merged one at `path`."""
    with tempfile.TemporaryFile(prefix="hiwater-") as unpacked:
        with _opened(path) as archive:
            _copy(archive, member, unpacked)
        unpacked.flush()
        return read_descriptor(Path(path, member.name), unpacked.fileno())


def _opened(path: str | os.PathLike[str]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise MissingCapture(f"there is no capture {os.fspath(path)!r}", "check the path") from None
    except _DAMAGE as error:
        raise TruncatedCapture(
            "the merged capture is cut short or damaged: its directory cannot be read",
            "copy it again whole, or merge again",
        ) from error


def _index(archive: zipfile.ZipFile) -> tuple[Member, ...]:
    try:
        with archive.open(MERGED_INDEX) as stream:
            said = json.loads(stream.read(_LARGEST_INDEX_BYTES))
    except (*_DAMAGE, RecursionError) as error:
        raise corrupt("the index of the merged capture cannot be read") from error
    if not isinstance(said, dict) or said.get("format") != _FORMAT or not isinstance(said.get("version"), int):
        raise corrupt("its index is not that of a merged capture")
    if said["version"] > VERSION:
        raise NewerCapture(
            f"the merged capture has format version {said['version']}, this hiwater reads up to {VERSION}",
            "read it with a newer hiwater",
        )
    captures = said.get("captures")
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
        if is_name and isinstance(digest, str) and type(size) is int and 0 <= size <= _LARGEST_CAPTURE_BYTES:
            return Member(str(name), digest, size)
    raise corrupt("its index has an entry that names no capture")


def _copy(archive: zipfile.ZipFile, member: Member, into: IO[bytes]) -> None:
    """Unpack one member, no more of it than the index says, and only when it is what was packed."""
    digest, left = hashlib.sha256(), member.bytes
    try:
        with archive.open(member.name) as stream:
            while left > 0:
                part = stream.read(min(left, _COPIED_AT_ONCE))
                if not part:
                    break
                digest.update(part)
                into.write(part)
                left -= len(part)
    except _DAMAGE as error:
        raise corrupt(f"{member.name} in the merged capture cannot be unpacked") from error
    if left or digest.hexdigest() != member.sha256:
        raise corrupt(f"{member.name} in the merged capture is not what was merged")


# Making one


@dataclass(frozen=True, slots=True)
class Packed:
    """A capture to be merged: what orders it, and how to get at its bytes."""

    host: str
    started_unix_ns: int
    pid: int
    sha256: str
    size: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]

    @property
    def name(self) -> str:
        """Its name in a merged capture: the host and process, and enough of its content to be the only one."""
        host = re.sub(r"[^A-Za-z0-9_-]", "_", self.host)[:40] or "host"
        return f"{host}.{self.pid}.{self.sha256[:12]}.hiw"


def pack(path: str | os.PathLike[str]) -> list[Packed]:
    """The capture at `path`, or all that a merged one holds, ready to be written. Raises what reading them raises.

    One that is still being written is copied first: it is merged as it was at this moment.
    """
    place = Path(path)
    if is_container(place):
        return [_packed_member(place, member) for member in members(place)]
    if histories.is_history(place):
        return [_packed_history(contents) for contents in histories.read_all(place)]
    contents = read_contents(place)
    if not place.is_file() and not is_container(place.parent):
        return [_packed_history(contents)]
    if is_container(place.parent):
        return [_packed_member(place.parent, member) for member in members(place.parent) if member.name == place.name]
    if not is_being_written(contents.header):
        with place.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        return [_packed(contents, digest, size, lambda: place.open("rb"))]
    return [_packed_copy(place)]


def _packed_history(contents: Contents) -> Packed:
    content = assemble(contents.header, contents.tables)
    return _packed(contents, hashlib.sha256(content).hexdigest(), len(content), lambda: io.BytesIO(content))


def _packed_copy(place: Path) -> Packed:
    with place.open("rb") as file:
        content = file.read(_LARGEST_CAPTURE_BYTES)
    with tempfile.TemporaryFile(prefix="hiwater-") as copy:
        copy.write(content)
        copy.flush()
        contents = read_descriptor(place, copy.fileno())
    return _packed(contents, hashlib.sha256(content).hexdigest(), len(content), lambda: io.BytesIO(content))


def _packed_member(place: Path, member: Member) -> Packed:
    def opened() -> IO[bytes]:
        return _opened(place).open(member.name)

    return _packed(read_member(place, member), member.sha256, member.bytes, opened)


def _packed(
    contents: Contents, digest: str, size: int, opened: Callable[[], AbstractContextManager[IO[bytes]]]
) -> Packed:
    header = contents.header
    return Packed(
        Tables(contents).facts.get("host", ""), header["started_unix_ns"], header["pid"], digest, size, opened
    )


def write(captures: Iterable[Packed], stream: IO[bytes]) -> int:
    """Write a merged capture; how many different captures are in it."""
    distinct = {capture.sha256: capture for capture in captures}
    ordered = sorted(
        distinct.values(), key=lambda capture: (capture.host, capture.started_unix_ns, capture.pid, capture.sha256)
    )
    index = {
        "format": _FORMAT,
        "version": VERSION,
        "captures": [{"name": c.name, "sha256": c.sha256, "bytes": c.size} for c in ordered],
    }
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(_entry(MERGED_INDEX, zipfile.ZIP_STORED), json.dumps(index, indent=1) + "\n")
        for capture in ordered:
            digest = hashlib.sha256()
            with (
                capture.open() as source,
                archive.open(_entry(capture.name, zipfile.ZIP_DEFLATED, capture.size), "w") as member,
            ):
                left = capture.size
                while left > 0 and (part := source.read(min(left, _COPIED_AT_ONCE))):
                    digest.update(part)
                    member.write(part)
                    left -= len(part)
            if digest.hexdigest() != capture.sha256:
                raise OutputFailed(
                    f"the capture of process {capture.pid} changed while it was merged", "merge again when it has ended"
                )
    return len(ordered)


def _entry(name: str, method: int, size: int = 0) -> zipfile.ZipInfo:
    """An entry that depends on nothing but what is in it: no time, no rights of the moment."""
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = method
    entry.external_attr = 0o644 << 16
    entry.file_size = size
    return entry
