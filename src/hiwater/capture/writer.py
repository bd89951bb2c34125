"""Writes captures that hold a timeline and no stacks: what `hiwater sample` leaves behind.

The file is laid out as `native/capture/format.h` says, with three tables of its own, which any reader finds through the
schema:

    processes        every process that was watched; the first is the target, and its samples are in `timeline`
    process_samples  the samples of the others
    scopes           named intervals that the watched processes told of

A killed writer leaves a readable capture: records are written first, then the directory, then the header that counts
them. Only the standard library is used, so that watching can begin at once and takes little memory.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import tempfile
import time
from contextlib import suppress

from hiwater._os import destination, portable, trust
from hiwater._os.process_identity import current_boot_id, is_alive, start_ticks_of
from hiwater.capture.format import COUNTED_KINDS, MAGIC, VERSION
from hiwater.capture.process import STATE_ENDED, STATE_RECORDING, is_being_written
from hiwater.capture.record_fields import (
    EVENTS_HEADER,
    FIXED_HEADER,
    HEADER,
    SAMPLED_TABLES,
    TABLES,
    WRITER_HEADER,
    Fields,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXTENT_BYTES = 128 * 1024
HEADER_BYTES = 4096
SCHEMA_BYTES = 12 * 1024
MAX_EXTENTS = 28 * 1024
DIRECTORY_OFFSET = HEADER_BYTES + SCHEMA_BYTES
FIRST_EXTENT_OFFSET = 256 * 1024
UNKNOWN_EXIT_CODE = -1  # of the target, in the header
UNKNOWN_EXIT_STATUS = -(1 << 31)  # of any process, in its record: -1 is SIGHUP there

_EVENTS_ALIGNMENT = 64

_TABLES = TABLES | SAMPLED_TABLES
_NUMPY_LETTERS = {"H": "<u2", "I": "<u4", "i": "<i4", "Q": "<u8", "q": "<i8"}


def _placed(fields: Fields, start: int = 0) -> Iterator[tuple[str, str, int, int]]:
    """Each field as (name, letter, count, offset), at its natural alignment."""
    offset = start
    for name, letter, count in fields:
        size = 1 if letter == "s" else struct.calcsize("=" + letter)
        offset = -(-offset // size) * size
        yield name, letter, count, offset
        offset += size * count


def header_places() -> dict[str, tuple[str, int, int]]:
    """Every field of the header as name: (letter, count, offset)."""
    first = list(_placed((*FIXED_HEADER, *HEADER)))
    end = first[-1][3] + 8
    aligned = -(-end // _EVENTS_ALIGNMENT) * _EVENTS_ALIGNMENT
    return {
        name: (letter, count, offset)
        for name, letter, count, offset in (*first, *_placed((*EVENTS_HEADER, *WRITER_HEADER), aligned))
    }


def schema() -> dict[str, object]:
    """What the schema text of these captures says."""
    fixed = {name for name, _, _ in FIXED_HEADER} - {"version"}
    header = [_described(name, *place) for name, place in header_places().items() if name not in fixed]
    tables = [
        {
            "name": name,
            "record_bytes": _record_bytes(fields),
            "fields": [_described(field, letter, count, offset) for field, letter, count, offset in _placed(fields)],
        }
        for name, fields in _TABLES.items()
    ]
    return {"format": "hiwater.capture", "version": VERSION, "header": header, "tables": tables}


def _described(name: str, letter: str, count: int, offset: int) -> list[object]:
    if letter == "s":
        return [name, f"S{count}", offset]
    return [name, _NUMPY_LETTERS[letter], offset] if count == 1 else [name, _NUMPY_LETTERS[letter], offset, count]


def _record_bytes(fields: Fields) -> int:
    return struct.calcsize("=" + "".join(letter * count for _, letter, count in fields)) if fields else 1


class _TableFile:
    """One table on its way to the file: where its records go, and those that are not there yet."""

    __slots__ = ("count", "extents", "number", "pack", "pending", "record_bytes", "written")

    def __init__(self, number: int, fields: Fields) -> None:
        self.number = number
        self.record_bytes = _record_bytes(fields)
        self.pack = struct.Struct("<" + "".join(letter * count for _, letter, count in fields)) if fields else None
        self.extents: list[int] = []
        self.pending = bytearray()
        self.count = 0  # with the pending ones
        self.written = 0


class CaptureWriter:
    """A capture being written. Rows wait in memory until `flush()`, which a killed writer loses and nothing else.

    Every method that writes raises OSError when the file system refuses; what was written before stays readable.
    """

    def __init__(self, path: str, *, pid: int, start_ticks: int, facts: Mapping[str, str], started_ns: int) -> None:
        """Make the file. `started_ns` is CLOCK_MONOTONIC at the time that all others count from.

        Raises CaptureUnwritable where a capture cannot be made.
        """
        self.path = path
        self.started_ns = started_ns
        self._tables = {name: _TableFile(number, fields) for number, (name, fields) in enumerate(_TABLES.items())}
        self._places = header_places()
        self._header = bytearray(HEADER_BYTES)
        self._strings: dict[str, int] = {}
        self._updates: dict[tuple[str, int], bytes] = {}
        self._extents_used = 0
        destination.check(path)
        try:
            # As the engine does it (native/capture/placement.h): made beside, with its owner's rights alone, and moved
            # to its name.
            self._file, made = tempfile.mkstemp(prefix=".hiwater-", dir=os.path.dirname(path) or os.curdir)
            try:
                self._begin(pid, start_ticks, facts)
                _refuse_to_replace(path)
                self._move(made, path)
            except OSError:
                if self._file >= 0:
                    os.close(self._file)
                os.unlink(made)
                raise
        except OSError as error:
            raise destination.explain(path, error) from error

    def _move(self, made: str, path: str) -> None:
        try:
            os.replace(made, path)
        except PermissionError:  # Windows moves no file that is open
            os.close(self._file)
            self._file = -1
            os.replace(made, path)
            self._file = trust.open_regular(path, os.O_RDWR)

    def _begin(self, pid: int, start_ticks: int, facts: Mapping[str, str]) -> None:
        boot_id, own_ticks = _boot_id(), start_ticks_of(os.getpid()) or 0
        self.set(
            magic=MAGIC, version=VERSION, header_bytes=HEADER_BYTES, extent_bytes=EXTENT_BYTES,
            schema_offset=HEADER_BYTES, schema_bytes=SCHEMA_BYTES, directory_offset=DIRECTORY_OFFSET,
            first_extent_offset=FIRST_EXTENT_OFFSET, max_extents=MAX_EXTENTS, state=STATE_RECORDING, pid=pid,
            process_start_ticks=start_ticks, boot_id=boot_id,
            started_unix_ns=time.time_ns() - (time.monotonic_ns() - self.started_ns), started_ns=self.started_ns,
            exit_code=-1, counted_kinds=len(COUNTED_KINDS), generation=1, table_total=len(self._tables),
            writer_pid=os.getpid(), writer_start_ticks=own_ticks,
        )  # fmt: skip
        text = json.dumps(schema(), separators=(",", ":")).encode()
        portable.write_all_at(self._file, text.ljust(SCHEMA_BYTES), HEADER_BYTES)
        os.ftruncate(self._file, FIRST_EXTENT_OFFSET)
        self.string("")
        # Record 0 is "nothing" in each, as in the engine's.
        for name in ("codes", "nodes", "accounts", "account_peaks"):
            table = self._tables[name]
            table.pending += bytes(table.record_bytes)
            table.count += 1
        for key, value in facts.items():
            self.append("facts", self.string(key), self.string(value))
        self.flush()

    def set(self, **fields: int | bytes) -> None:
        """Change fields of the header; the file has them after the next `flush()`."""
        for name, value in fields.items():
            letter, count, offset = self._places[name]
            struct.pack_into(f"<{count if letter == 's' else ''}{letter}", self._header, offset, value)

    def string(self, text: str) -> int:
        """The number of an interned string."""
        number = self._strings.get(text)
        if number is None:
            number = self._strings[text] = len(self._strings)
            encoded = text.encode("utf-8", "replace")
            characters = self._tables["string_bytes"]
            self.append("strings", characters.count, len(encoded), 0)
            characters.pending += encoded
            characters.count += len(encoded)
        return number

    def append(self, name: str, *values: int) -> int:
        """Add a record to a table and return its number."""
        table = self._tables[name]
        assert table.pack is not None, "string_bytes is filled by string()"
        table.pending += table.pack.pack(*values)
        table.count += 1
        return table.count - 1

    def count(self, name: str) -> int:
        """How many records a table has."""
        return self._tables[name].count

    def update(self, name: str, number: int, *values: int) -> None:
        """Replace a record, wherever it is by now; the file has it after the next `flush()`."""
        table = self._tables[name]
        assert table.pack is not None, "bytes of strings never change"
        record = table.pack.pack(*values)
        if number >= table.written:
            begin = (number - table.written) * table.record_bytes
            table.pending[begin : begin + table.record_bytes] = record
        else:  # not before the strings it may name
            self._updates[name, number] = record

    def flush(self) -> None:
        """Write what waits, then the directory, then the header that counts it: valid in between, too."""
        directory_changed = False
        for table in self._tables.values():
            in_extent = EXTENT_BYTES // table.record_bytes
            while table.pending:
                if table.written == len(table.extents) * in_extent:
                    table.extents.append(self._take_extent())
                    directory_changed = True
                room = in_extent - table.written % in_extent
                piece = table.pending[: room * table.record_bytes]
                portable.write_all_at(self._file, piece, self._offset(table, table.written))
                table.written += len(piece) // table.record_bytes
                del table.pending[: len(piece)]
        if directory_changed:
            self._write_directory()
        self._write_counts()
        for (name, number), record in self._updates.items():
            portable.write_all_at(self._file, record, self._offset(self._tables[name], number))
        self._updates.clear()

    def _write_counts(self) -> None:
        counts = [table.written for table in self._tables.values()]
        struct.pack_into(f"<{len(counts)}Q", self._header, self._places["table_count"][2], *counts)
        self.set(extents_used=self._extents_used, heartbeat_ns=max(0, time.monotonic_ns() - self.started_ns))
        portable.write_all_at(self._file, self._header, 0)

    def close(
        self, *, state: int = STATE_ENDED, exit_code: int = UNKNOWN_EXIT_CODE, ended_ns: int | None = None
    ) -> None:
        """Flush, say how it ended, and let go of the file. `ended_ns` counts from `started_ns`."""
        end = max(1, time.monotonic_ns() - self.started_ns if ended_ns is None else ended_ns)
        try:
            self.set(state=state, exit_code=exit_code, ended_ns=end)
            self.flush()
        finally:
            os.close(self._file)

    def _take_extent(self) -> int:
        """The next free extent, with all of its room in the file: a reader never finds the file's end inside a
        record."""
        if self._extents_used == MAX_EXTENTS:
            raise OSError(errno.EFBIG, "a capture cannot grow beyond 3.5 GiB")
        number = self._extents_used
        os.ftruncate(self._file, FIRST_EXTENT_OFFSET + (number + 1) * EXTENT_BYTES)
        self._extents_used += 1
        return number

    def _write_directory(self) -> None:
        entries = [0] * self._extents_used
        for table in self._tables.values():
            for chunk, extent in enumerate(table.extents):
                entries[extent] = table.number << 24 | chunk
        portable.write_all_at(self._file, struct.pack(f"<{len(entries)}I", *entries), DIRECTORY_OFFSET)

    def _offset(self, table: _TableFile, number: int) -> int:
        extent, place = divmod(number, EXTENT_BYTES // table.record_bytes)
        return FIRST_EXTENT_OFFSET + table.extents[extent] * EXTENT_BYTES + place * table.record_bytes


def _refuse_to_replace(path: str) -> None:
    """Raises OSError (EBUSY) for a capture of a process that is still running, or that is still being written."""
    try:
        with open(trust.open_regular(path), "rb") as file:
            content = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return
    if len(content) < HEADER_BYTES or not content.startswith(MAGIC):
        return
    header = {
        name: struct.unpack_from(f"<{count if letter == 's' else ''}{letter}", content, offset)[0]
        for name, (letter, count, offset) in header_places().items()
    }
    header["boot_id"] = header["boot_id"].rstrip(b"\0")
    boot_id = header["boot_id"].decode("ascii", "replace")
    if is_being_written(header) or is_alive(header["pid"], header["process_start_ticks"], boot_id):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)


def _boot_id() -> bytes:
    with suppress(OSError):
        return current_boot_id().encode()[:39]
    return b""
