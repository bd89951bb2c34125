"""Makes merged captures: `container` says what is in one, and reads it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hiwater._os import destination
from hiwater._os.destination import MERGED_INDEX
from hiwater._os.replacing import whole_file
from hiwater.capture import container, copying, histories, run_folder, run_index
from hiwater.capture.assemble import assemble
from hiwater.capture.container import COPIED_AT_ONCE, Member
from hiwater.capture.in_memory import TablesInMemory
from hiwater.capture.process import is_being_written
from hiwater.capture.reader import Contents, read_descriptor
from hiwater.capture.run_files import read_files
from hiwater.capture.run_index import Row
from hiwater.capture.tables import Tables
from hiwater.errors import OutputFailed


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


def pack(path: str | os.PathLike[str]) -> tuple[list[Packed], list[Row]]:
    """The captures at `path`, ready to be written, and the rows of the indexes there, among them one for each capture
    of a child that cannot be read. Raises what reading the others raises.

    One that is still being written is copied first: it is merged as it was at this moment.
    """
    place = Path(path)
    if members_of_job := run_folder.of_job(place):
        packed = [pack(member) for member in members_of_job]
        return [one for captures, _ in packed for one in captures], [row for _, rows in packed for row in rows]
    if container.is_container(place):
        return [_packed_member(place, member) for member in container.members(place)], container.rows(place)
    if histories.is_history(place):
        return [_packed_history(contents) for contents in histories.read_all(place)], []
    if run_folder.places(place) is None:
        return [_pack_one(place)], []
    files = read_files(place, TablesInMemory())
    unreadable = [run_index.unreadable_row(problem) for problem in files.unreadable]
    return [_pack_one(one.path) for one in files.captures], [*files.rows, *unreadable]


def _pack_one(place: Path) -> Packed:
    contents = container.read_contents(place)
    if container.is_container(place.parent):
        (member,) = (member for member in container.members(place.parent) if member.name == place.name)
        return _packed_member(place.parent, member)
    if not os.path.isfile(place):
        return _packed_history(contents)
    if is_being_written(contents.header):
        return _packed_copy(place)
    with place.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    return _packed(contents, digest, size, lambda: place.open("rb"))


def _packed_history(contents: Contents) -> Packed:
    content = assemble(contents.header, contents.tables)
    return _packed(contents, hashlib.sha256(content).hexdigest(), len(content), lambda: io.BytesIO(content))


def _packed_copy(place: Path) -> Packed:
    with place.open("rb") as file:
        content = copying.copy(file.fileno())
    with tempfile.TemporaryFile(prefix="hiwater-") as copy:
        copy.write(content)
        copy.flush()
        contents = read_descriptor(place, copy.fileno())
    return _packed(contents, hashlib.sha256(content).hexdigest(), len(content), lambda: io.BytesIO(content))


def _packed_member(place: Path, member: Member) -> Packed:
    def opened() -> IO[bytes]:
        return container.opened(place).open(member.name)

    return _packed(container.read_member(place, member), member.sha256, member.bytes, opened)


def _packed(
    contents: Contents, digest: str, size: int, opened: Callable[[], AbstractContextManager[IO[bytes]]]
) -> Packed:
    header = contents.header
    return Packed(
        Tables(contents).facts.get("host", ""), header["started_unix_ns"], header["pid"], digest, size, opened
    )


def write(captures: Iterable[Packed], rows: Iterable[Row], stream: IO[bytes]) -> int:
    """Write a merged capture; how many different captures are in it."""
    index_rows = run_index.text(rows)
    distinct = {capture.sha256: capture for capture in captures}
    ordered = sorted(
        distinct.values(), key=lambda capture: (capture.host, capture.started_unix_ns, capture.pid, capture.sha256)
    )
    index = {
        "format": container.FORMAT,
        "version": container.VERSION,
        "captures": [{"name": c.name, "sha256": c.sha256, "bytes": c.size} for c in ordered],
    }
    if index_rows:
        digest = hashlib.sha256(index_rows).hexdigest()
        index["rows"] = {"name": container.ROWS, "sha256": digest, "bytes": len(index_rows)}
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(_entry(MERGED_INDEX, zipfile.ZIP_STORED), json.dumps(index, indent=1) + "\n")
        if index_rows:
            archive.writestr(_entry(container.ROWS, zipfile.ZIP_DEFLATED), index_rows)
        for capture in ordered:
            copied = hashlib.sha256()
            with (
                capture.open() as source,
                archive.open(_entry(capture.name, zipfile.ZIP_DEFLATED, capture.size), "w") as member,
            ):
                left = capture.size
                while left > 0 and (part := source.read(min(left, COPIED_AT_ONCE))):
                    copied.update(part)
                    member.write(part)
                    left -= len(part)
            if copied.hexdigest() != capture.sha256:
                raise OutputFailed(
                    f"the capture of process {capture.pid} changed while it was merged", "merge again when it has ended"
                )
    return len(ordered)


def write_file(captures: Iterable[Packed], rows: Iterable[Row], path: str) -> int:
    """Write a merged capture to `path`, which is replaced when it is complete; how many different captures are in
    it. Raises CaptureUnwritable."""
    try:
        with whole_file(Path(os.path.realpath(path))) as stream:  # readable only by its owner, as a capture
            return write(captures, rows, stream)
    except OSError as error:
        raise destination.explain(path, error) from error


def _entry(name: str, method: int, size: int = 0) -> zipfile.ZipInfo:
    """An entry that depends on nothing but what is in it: no time, no rights of the moment."""
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = method
    entry.external_attr = 0o644 << 16
    entry.file_size = size
    return entry
