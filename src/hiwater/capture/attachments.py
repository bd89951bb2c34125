"""What a recording attaches to its capture when it is over: whole files of other libraries, as those wrote them.

They are members of a zip archive, and the archive is a table of plain bytes, `attached`. A reader that does not know
the table leaves it alone. It is added to a finished capture: first its bytes, then the directory and the schema, and
last the header that counts them, so that a capture whose disk fills up meanwhile stays what it was. Writing uses the
standard library alone: it happens in the watched process.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile

from hiwater._os import portable, trust
from hiwater.capture.format import MAGIC
from hiwater.errors import CaptureUnwritable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hiwater.capture.reader import Contents

TABLE = "attached"
PERF_MAP = "perf.map"
_START = struct.Struct("<8sIIQQQQQI")  # as in layout.py, which needs numpy
_MORE_COUNTS_OFFSET, _MORE_COUNTS = 3072, 64  # in the header, where the engine's own room for counts is used up
_REMEDY = "the capture itself is whole; only the memory of devices is missing in it"


def append(path: str, members: Mapping[str, bytes]) -> None:
    """Attach these to the finished capture at `path`. Raises CaptureUnwritable; the capture is then as it was."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, content in members.items():
            made.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED, 1)
    try:
        descriptor = trust.open_regular(path, os.O_RDWR)
    except OSError as error:
        raise CaptureUnwritable(f"{path!r} cannot be added to ({error.strerror})", _REMEDY) from error
    try:
        _CaptureExtender(descriptor).add(archive.getvalue())
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise CaptureUnwritable(f"{path!r} cannot be added to ({error})", _REMEDY) from error
    finally:
        os.close(descriptor)


class _CaptureExtender:
    """A finished capture with its schema, to which one table is added."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        start = _START.unpack(os.pread(descriptor, _START.size, 0))
        if start[0] != MAGIC:
            raise ValueError("it is not a capture")
        _, _, self._header_bytes, self._extent_bytes, self._schema_offset, self._schema_bytes = start[:6]
        self._directory_offset, self._first_extent_offset, self._max_extents = start[6:]
        self._schema = json.loads(os.pread(descriptor, self._schema_bytes, self._schema_offset).rstrip(b"\0 \n"))
        self._header = bytearray(os.pread(descriptor, self._header_bytes, 0))
        self._room_for_directory = self._first_extent_offset - self._directory_offset

    def add(self, content: bytes) -> None:
        tables = self._schema["tables"]
        if any(table["name"] == TABLE for table in tables):
            raise ValueError("something is attached to it already")
        number = len(tables)
        tables.append({"name": TABLE, "record_bytes": 1, "fields": []})
        first: int = struct.unpack_from("<I", self._header, self._field("extents_used")[2])[0]
        pieces = [content[at : at + self._extent_bytes] for at in range(0, len(content), self._extent_bytes)]
        last = first + len(pieces)
        if last > self._max_extents or 4 * last > self._room_for_directory:
            raise ValueError("it has no room left")
        text = json.dumps(self._with_count(number, len(content)), separators=(",", ":")).encode()
        if len(text) > self._schema_bytes:
            raise ValueError("its schema has no room left")
        os.ftruncate(self._file, max(os.fstat(self._file).st_size, self._place(last)))
        for index, piece in enumerate(pieces, first):
            portable.write_all_at(self._file, piece, self._place(index))
        entries = [number << 24 | chunk for chunk in range(len(pieces))]
        portable.write_all_at(
            self._file, struct.pack(f"<{len(entries)}I", *entries), self._directory_offset + 4 * first
        )
        portable.write_all_at(self._file, text.ljust(self._schema_bytes), self._schema_offset)
        struct.pack_into("<I", self._header, self._field("extents_used")[2], last)
        portable.write_all_at(self._file, bytes(self._header), 0)

    def _place(self, extent: int) -> int:
        return int(self._first_extent_offset + extent * self._extent_bytes)

    def _field(self, name: str) -> list[Any]:
        found: list[Any] = next(field for field in self._schema["header"] if field[0] == name)
        return found

    def _with_count(self, number: int, count: int) -> dict[str, Any]:
        """Put the count into the header; its counts move to a place with more room where the engine's has none left."""
        field = self._field("table_count")
        if number >= field[3]:
            used = struct.unpack_from(f"<{field[3]}Q", self._header, field[2])
            if max(other[2] for other in self._schema["header"]) + 256 > _MORE_COUNTS_OFFSET:
                raise ValueError("its header has no room left")
            field[2:] = [_MORE_COUNTS_OFFSET, _MORE_COUNTS]
            struct.pack_into(f"<{len(used)}Q", self._header, _MORE_COUNTS_OFFSET, *used)
        struct.pack_into("<Q", self._header, field[2] + 8 * number, count)
        said: dict[str, Any] = self._schema
        return said


def read(contents: Contents) -> dict[str, bytes]:
    """What is attached to a capture, by name. Raises CorruptCapture."""
    from hiwater.capture import archives, bounds
    from hiwater.capture.layout import corrupt

    table = contents.tables.get(TABLE)
    if table is None or not len(table):
        return {}
    try:
        with archives.opened(io.BytesIO(table.tobytes())) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > bounds.most_unpacked(len(table)):
                raise corrupt("what is attached to it is larger than can be")
            for member in members:
                archives.check_member(archive, member.filename, member.file_size)
            return {member.filename: archive.read(member) for member in members}
    except archives.DAMAGE as error:
        raise corrupt(f"what is attached to it cannot be unpacked ({error})") from error
